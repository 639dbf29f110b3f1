# Sourced by bash in a Slurm job, through BASH_ENV, before a script's first line. Slurm's task prolog cannot set a value
# of several lines; GPUMESH_MULTILINE names the variables that hold the nodes' addresses one a line.
for gpumesh_name in ${GPUMESH_MULTILINE//,/ }; do
    [[ -v $gpumesh_name ]] || export "$gpumesh_name=${GPUMESH_NODE_IPS//,/$'\n'}"
done
unset gpumesh_name
