"""The subcommands of `carrier`, a file for each thing that a person comes to do."""
