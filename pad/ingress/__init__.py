"""The way of an object into the delegate: admission, the lanes of registrations, the pipeline."""
