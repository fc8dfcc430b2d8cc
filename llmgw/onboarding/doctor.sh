# What doctor finds, as JSON. Its exit code says how bad it is, and so does what it prints.
R=${LLMGW_ROOT:-}
"$R/usr/local/bin/llmgw" doctor -o json --config "$R/etc/llmgw/agent.yaml"
[ $? -le 2 ]
