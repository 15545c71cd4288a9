from paretorch.workflows.posttraining.budget import PostTrained, post_train

__all__ = ["PostTrained", "post_train"]
