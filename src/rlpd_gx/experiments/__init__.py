"""What is measured for tables and figures; each module can be run by a command."""
