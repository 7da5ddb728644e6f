"""HLA federations: a run-time infrastructure, federate ambassadors, bridges between federations.

Source: IEEE 1516-2010 (the services and their names), J. Dingel, D. Garlan, C. Damon, Bridging the HLA (the bridge).
"""
