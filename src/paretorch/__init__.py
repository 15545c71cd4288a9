"""paretorch: smaller networks, cheaper to train."""
