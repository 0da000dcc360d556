// SPDX-License-Identifier: Apache-2.0

// Package scenario runs the stories in test/scenario/stories: objects go in, and
// the story says which frontends and backends come out, and who then reaches
// whom.
//
// Every story is told twice. Purely, the desired state alone is asked, and what
// the story says about connections is taken for granted. On a kernel, the same
// objects are programmed by a backend in a lab of network namespaces, the
// kernel's content is read back after each step and has to be what the desired
// state asks for, and connections are really made. A backend passes the stories
// of its mode; they know nothing of how it works.
//
// # Language
//
// A story is a file of directives in the form of
// github.com/cockroachdb/datadriven: a command with arguments, lines of input,
// a line "----", and the expected output. "go test ./test/scenario -rewrite"
// writes what came out into the files, to be read before it is committed.
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
//	                           nodeport-addresses=(RANGE,...) or =primary
//	serve                    one server a line: MACHINE PROTOCOL PORT; output: ok
//	apply                    objects in YAML; output: what changed on the first
//	                         node, or on node=NAME
//	delete                   one object a line: KIND [NAMESPACE/]NAME; output as
//	                         for apply
//	addresses [node=NAME]    addresses come to the first node, or the one that is
//	                         named, and go: lines of add or remove ADDRESS/LEN
//	                         [on LINK], by default on eth0; output as for apply
//	state [node=NAME]        output: all frontends and their backends, and all
//	                         else that is programmed
//	connect from=MACHINE to=ADDRESS:PORT [proto=udp] [n=40]
//	                         makes n connections; output: which servers answered
//	                         and as whom they saw the client, or what became of
//	                         it instead. More arguments:
//	                           source=ADDRESS  the client's address
//	                           port=NUMBER     its port: with UDP, all datagrams
//	                             are of one flow then, with those of later
//	                             directives too
//	                           sticky          all connections have to reach one
//	                             server, and it does not matter which
//	                           gap=DURATION    passes before each connection
//	                           until=SERVER    goes on until that server answers
//	wait DURATION            lets time pass, where there is a kernel; output: ok
//	restart [node=NAME]      the proxy on all nodes, or on one, ends and starts
//	                         again, and learns of the objects in another order;
//	                         output: ok
package scenario
