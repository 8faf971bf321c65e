"""`gpuloom doctor`: reads a cluster (`reading`), judges what was read (`checks`), shows it (`command`)."""
