"""`lightconv demo`: real text, a small model, its scores, its kernels and its speed on one page."""
