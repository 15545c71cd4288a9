"""The queue: jobs are resumable trainings with a name, each claimed by one worker at a time."""
