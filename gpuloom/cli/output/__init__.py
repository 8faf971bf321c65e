"""What all answers have in common: table or document (`forms`), columns (`tables`), exit codes (`exits`)."""
