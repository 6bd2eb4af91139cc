"""``atropos-launch``: start a run from one YAML file, on this machine or a SLURM cluster.

plan      the file: sections api, inference, environments, trainer, slurm
servers   the command of an inference server, by engine
roles     the command of every process, once it is known where the others listen
local     child processes of this machine, watched, restarted, ended
slurm     sbatch scripts as text; submit writes and submits them
node      what such a script runs: wait for the others, become the process
cli       atropos-launch local | slurm | node
"""
