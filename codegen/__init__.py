"""From metadata schemas to entries: bundle -> schema -> passes -> model -> render, binder and derive.

`read_bundle` (schema), `TypeRepository`, `InformationType` and `type_name` (repository) are what other rooms use.
`types` is the repository that outlives a process.
"""
