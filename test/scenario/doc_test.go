// SPDX-License-Identifier: Apache-2.0

// Package scenario runs the stories in test/scenario/stories. A story applies objects and
// expects changes of frontends and backends, and connections between machines.
//
// Every story runs without a kernel, where only the desired state is checked and
// connections are skipped, and on the kernel in each mode: a dataplane programs the
// objects in a lab of network namespaces, the kernel's content is read back after each
// step and compared with the desired state, and connections are made. Stories do not
// depend on how a dataplane works.
//
// TestDemo is what 'make demo' runs: on the same machines, 'slipstream run' itself.
//
// # Language
//
// A story is a file of directives in the form of
// github.com/cockroachdb/datadriven: a command with arguments, lines of input,
// a line "----", and the expected output. "go test ./test/scenario -rewrite"
// writes the actual output into the files; read it before it is committed.
//
//	require FEATURE...       what the kernel needs beside nf_tables; in the
//	                         first directive
//	lab [OPTION...]          machines, one a line, in this order:
//	                           node NAME ADDRESS/LEN... pods RANGE...
//	                           pod NAME on NODE ADDRESS...
//	                           host NAME ADDRESS/LEN... [via NODE for RANGE...]
//	                         each node runs the proxy, which knows the node's
//	                         addresses and the loopback ones; output: ok. The
//	                         options are those of the proxy:
//	                           cluster-cidr=(RANGE,...)
//	                           detect-local=NodeCIDR
//	                           detect-local=BridgeInterface:NAME
//	                           detect-local=InterfaceNamePrefix:NAME
//	                             (a node's links to its pods are veth1, veth2 ...
//	                             in the order of the pods)
//	                           masquerade-all
//	                           no-external-ips
//	                           nodeport-addresses=(RANGE or primary,...)
//	                           loopback-relays (in nftables mode)
//	serve                    one server a line: MACHINE PROTOCOL PORT; output: ok
//	routes                   one a line: MACHINE via NODE for RANGE...; output: ok
//	apply                    objects in YAML; output: what changed on the first
//	                         node, or on node=NAME
//	delete                   one object a line: KIND [NAMESPACE/]NAME; output as
//	                         for apply
//	addresses [node=NAME]    changes the addresses of the first node, or of the one
//	                         that is named: lines of add or remove ADDRESS/LEN
//	                         [on LINK], by default on eth0; output as for apply
//	state [node=NAME]        output: everything that is programmed
//	connect from=MACHINE to=ADDRESS:PORT [proto=udp] [n=40]
//	                         makes n connections; output: which servers answered,
//	                         which machine's address they saw as the client's, and
//	                         the failures. More arguments:
//	                           source=ADDRESS  the client's address
//	                           port=NUMBER     its port: with UDP, all datagrams
//	                             are of one flow then, with those of later
//	                             directives too
//	                           sticky          all connections have to reach one
//	                             server, and it does not matter which
//	                           gap=DURATION    passes before each connection
//	                           until=SERVER    goes on until that server answers
//	explain from=MACHINE to=ADDRESS:PORT [proto=udp] [source=ADDRESS]
//	                         output: what the proxy of that node or pod decides
//	                         about such a connection. What connect does is compared
//	                         with this decision, too
//	wait DURATION            waits, except without a kernel; output: ok
//	restart [node=NAME]      restarts the proxy on all nodes, or on one, with the
//	                         objects in another order; output: ok
package scenario
