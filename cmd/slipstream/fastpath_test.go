// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// output runs slipstream on the node and returns what it prints.
func (s *site) output(args ...string) string {
	s.t.Helper()
	var out bytes.Buffer
	cmd := s.command(args...)
	cmd.Stdout = &out
	p, err := s.node.Start(cmd)
	s.check(err)
	s.check(p.Wait())
	return out.String()
}

// tables returns the node's nftables tables.
func (s *site) tables() string {
	s.t.Helper()
	out, err := s.node.Run(s.t.Context(), "nft", "list", "tables")
	s.check(err)
	return string(out)
}

// stream keeps a connection to the Service busy.
func (s *site) stream() *lab.Stream {
	s.t.Helper()
	stream, err := s.client.Stream(lab.TCP, webAddr, 2*time.Millisecond)
	s.check(err)
	s.t.Cleanup(func() { stream.Close() })
	return stream
}

// offloaded returns how many connections to a Service are offloaded, as listed by
// "slipstream flows".
func (s *site) offloaded(service string) (n int) {
	s.t.Helper()
	var listing struct {
		Flows []struct{ Service string }
	}
	s.check(json.Unmarshal([]byte(s.output("flows", "-o", "json")), &listing))
	for _, f := range listing.Flows {
		if f.Service == service {
			n++
		}
	}
	return n
}

// alive fails the test unless the stream continues.
func (s *site) alive(stream *lab.Stream) {
	s.t.Helper()
	before := stream.Stats().Received
	s.until("the connection goes on", func() bool { return stream.Stats().Received > before+10 })
}

// untilFastPath waits until the fast path's table exists, or does not. Only connections that
// begin afterwards are offloaded, as the kernel counts their packets.
func (s *site) untilFastPath(there bool) {
	s.t.Helper()
	s.until(fmt.Sprint("the fast path is there: ", there), func() bool {
		return strings.Contains(s.tables(), "slipstream-fastpath") == there
	})
}

// TestFastPath follows a connection onto the fast path and back.
func TestFastPath(t *testing.T) {
	kerneltest.Require(t, kerneltest.Flowtable)
	s := newSite(t)
	s.save("web.yaml", web(0))
	p := s.run("--metrics-bind-address", "127.0.0.1:10249")
	s.untilReached("web-0")
	s.untilFastPath(true)
	stream := s.stream()
	s.until("the connection is offloaded", func() bool { return s.offloaded("default/web") == 1 })
	s.alive(stream)
	for _, want := range []string{"slipstream_fastpath_supported 1\n", "slipstream_fastpath_interfaces 5\n"} {
		if m := s.metrics(); !strings.Contains(m, want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	if table := s.output("flows", "--by-service"); !strings.Contains(table, "default/web") || !strings.Contains(table, "10.96.0.10:80/TCP") {
		t.Errorf("flows --by-service:\n%s", table)
	}

	const namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: default, annotations: {slipstream.io/fast-path: '%s'}}}"
	s.save("namespace.yaml", fmt.Sprintf(namespace, "off"))
	s.until("its Namespace has opted out", func() bool { return s.offloaded("default/web")+s.offloaded("") == 0 })
	s.alive(stream)
	s.save("namespace.yaml", fmt.Sprintf(namespace, "on"))
	s.until("the connection is offloaded again", func() bool { return s.offloaded("default/web") == 1 })

	s.output("flows", "flush", "--service", "default/web", "--hold", "1h")
	s.until("it is back on the slow path", func() bool { return s.offloaded("default/web") == 0 })
	s.alive(stream)

	s.check(p.Signal(os.Interrupt))
	<-p.Done()
	s.alive(stream)
	tables := s.tables()
	if strings.Contains(tables, "slipstream-fastpath") || !strings.Contains(tables, "table ip slipstream\n") {
		t.Errorf("after the end of slipstream run there are\n%s", tables)
	}
}

// TestFastPathOff checks that there is no table with a threshold of 0 or a disabled feature
// gate, also after a run with a fast path.
func TestFastPathOff(t *testing.T) {
	kerneltest.Require(t, kerneltest.Flowtable)
	s := newSite(t)
	s.save("web.yaml", web(0))
	for _, args := range [][]string{
		{"--offload-packet-threshold", "0"},
		{"--feature-gates", config.Acceleration + "=false"},
	} {
		p := s.run()
		s.untilFastPath(true)
		s.check(p.Kill())
		<-p.Done()
		p = s.run(args...)
		s.untilFastPath(false)
		s.untilReached("web-0")
		s.check(p.Kill())
		<-p.Done()
	}
}

// TestFastPathAgent runs only the fast path, for all connections, beside a proxy without one.
func TestFastPathAgent(t *testing.T) {
	kerneltest.Require(t, kerneltest.Flowtable)
	s := newSite(t)
	s.save("web.yaml", web(0))
	s.run("--offload-packet-threshold", "0")
	s.untilReached("web-0")
	agent, err := s.node.Start(s.command("fastpath", "--scope", "all"))
	s.check(err)
	t.Cleanup(func() { agent.Kill() })
	s.untilFastPath(true)
	stream := s.stream()
	s.until("the connection is offloaded", func() bool { return s.offloaded("") == 1 })
	s.check(agent.Signal(os.Interrupt))
	<-agent.Done()
	s.alive(stream)
	if n := s.offloaded(""); n != 0 {
		t.Errorf("%d connections are offloaded without an agent", n)
	}
}

// TestNoFastPath runs on a kernel without flowtables. One line in the log says so, and
// everything else works.
func TestNoFastPath(t *testing.T) {
	if kerneltest.Flowtable.Probe() == nil {
		t.Log("this kernel has flowtables, so there is nothing to see")
		return
	}
	s := newSite(t)
	s.save("web.yaml", web(0, 1))
	s.run("--metrics-bind-address", "127.0.0.1:10249")
	s.untilReached("web-0", "web-1")
	s.untilMetric("slipstream_fastpath_supported 0")
	if n := strings.Count(s.log.String(), "No fast path"); n != 1 {
		t.Errorf("%d lines say that there is no fast path", n)
	}
}
