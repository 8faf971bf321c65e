"""Where the page's sections come from, one module for each service that is asked."""
