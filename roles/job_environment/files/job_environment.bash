# Sourced by bash in a Slurm job, through BASH_ENV, before the first line of a script. Slurm's task prolog cannot set a
# value of several lines; GPUMESH_MULTILINE names the variables that hold the addresses of the nodes, one per line.
for gpumesh_name in ${GPUMESH_MULTILINE//,/ }; do
    [[ -v $gpumesh_name ]] || export "$gpumesh_name=${GPUMESH_NODE_IPS//,/$'\n'}"
done
unset gpumesh_name
