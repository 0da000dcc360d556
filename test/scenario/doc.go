// SPDX-License-Identifier: Apache-2.0

// Package scenario runs the stories in testdata/scenarios: objects go in, and
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
//	lab [cluster-cidr=..] [masquerade-all]
//	                         machines, one a line, in this order:
//	                           node NAME ADDRESS/LEN... pods RANGE...
//	                           pod NAME on NODE ADDRESS...
//	                           host NAME ADDRESS/LEN... [via NODE for RANGE...]
//	                         each node runs the proxy; output: ok
//	serve                    one server a line: MACHINE PROTOCOL PORT; output: ok
//	apply                    objects in YAML; output: what changed on the first
//	                         node, or on node=NAME
//	delete                   one object a line: KIND NAMESPACE/NAME; output as
//	                         for apply
//	state                    output: all frontends and their backends
//	connect from=MACHINE to=ADDRESS:PORT [proto=udp] [n=40]
//	                         makes n connections; output: which servers answered
//	                         and as whom they saw the client, or what became of
//	                         it instead
//	restart                  the proxy ends and starts again; output: ok
package scenario
