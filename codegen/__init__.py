"""From metadata schemas to entries: bundle, schema, passes, model, rendering, binder.

`read_bundle` (schema), `TypeRepository`, `InformationType` and `type_name` (repository) are what other rooms use.
`types` is the repository that outlives a process.
"""
