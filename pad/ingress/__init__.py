"""The way of an object into the delegate: admission, levels of importance, the pipeline."""
