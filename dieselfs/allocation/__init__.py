"""Cache and remote IO are divided among jobs, as GPUs are (SiloD, EuroSys '23).

The estimator says how fast a job runs with a share of both; policies choose the shares. All of it
is arithmetic over bytes, bytes a second and seconds, without a clock or IO.
"""
