"""Experiments of arXiv 2610.39222, figure by figure: computed, drawn, and its statements checked (`dse paper`)."""
