// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestSockets runs with socketLoadBalancing. Connections from the node have no translation in
// conntrack, also while the process is gone, until they are switched off or cleaned up.
func TestSockets(t *testing.T) {
	s := newSite(t)
	kerneltest.Require(t, kerneltest.CGroupBPF)
	kerneltest.CGroup(t) // in /proc/self/mountinfo
	t.Cleanup(func() { s.check(socket.Remove(s.node.FD())) })
	s.save("web.yaml", web(0, 1))
	translated := func() (is bool) {
		t.Helper()
		_, err := s.node.Connect(lab.TCP, webAddr)
		s.check(err)
		out, err := s.node.Run(t.Context(), "conntrack", "-L", "-p", "tcp", "--orig-dst", webAddr.Addr().String())
		s.check(err)
		is = strings.Contains(string(out), webAddr.Addr().String())
		_, err = s.node.Run(t.Context(), "conntrack", "-F")
		s.check(err)
		return is
	}
	asked := socketPath(t)
	p := s.run("--socket-load-balancing", "tcp", "--check-period", "50ms", "--status-socket", asked)
	s.untilReachedFrom(s.node, webAddr, "web-0", "web-1")
	s.until("sockets connect directly", func() bool { return !translated() })
	s.save("web.yaml", web(1, 2))
	s.untilReachedFrom(s.node, webAddr, "web-1", "web-2")
	if translated() {
		t.Error("a connection was translated after a change")
	}
	out, _ := s.see("status", "--socket", asked)
	contains(t, out, "Sockets  ", "straight to endpoints so far", "attached true")
	out, _ = s.see("explain", "--socket", asked, "--trace", webAddr.String())
	contains(t, out, "goes straight to the endpoint (socketLoadBalancing)", "such as the probe of --trace", "The connection was answered within ")
	_ = socket.Remove(s.node.FD()) // by another program, which may find them attached again
	s.until("it is repaired", func() bool { return !translated() })
	s.save("web.yaml", web())
	s.until("the Service is refused", func() bool {
		_, err := s.node.Connect(lab.TCP, webAddr)
		return err != nil
	})
	s.save("web.yaml", web(0, 1))
	s.untilReachedFrom(s.node, webAddr, "web-0", "web-1")
	s.until("sockets connect directly after the Service was refused", func() bool { return !translated() }) // the dataplane comes first

	s.check(p.Kill())
	<-p.Done()
	if translated() {
		t.Error("a connection was translated after the process was killed")
	}
	p = s.run("--socket-load-balancing", "tcp", "--check-period", "50ms")
	s.save("web.yaml", web(2))
	s.untilReachedFrom(s.node, webAddr, "web-2")
	if translated() {
		t.Error("a connection was translated after a restart")
	}
	s.check(p.Kill())
	<-p.Done()
	p = s.run()
	s.until("sockets do not connect directly any more", translated)
	s.check(p.Kill())
	<-p.Done()

	p = s.run("--socket-load-balancing", "tcp")
	s.until("sockets connect directly again", func() bool { return !translated() })
	s.check(p.Kill())
	<-p.Done()
	s.cleanup()
	if _, err := s.node.Connect(lab.TCP, webAddr); err == nil {
		t.Error("cleanup has left the programs")
	}
}

// TestSocketsWithoutCGroup has no cgroup v2 mounted.
func TestSocketsWithoutCGroup(t *testing.T) {
	s := newSite(t)
	s.save("web.yaml", web(0))
	self, err := os.Executable()
	s.check(err)
	cmd := s.command()
	const unmount = `for m in $(grep -e " - cgroup2 " /proc/self/mountinfo | cut -d " " -f 5); do umount -l $m; done; exec "$@"`
	cmd.Path, cmd.Args = "/usr/bin/unshare", []string{"unshare", "--mount", "sh", "-ec", unmount, "sh", self, "run", "--manifests", s.dir, "--hostname-override", "n1", "--socket-load-balancing", "tcp"}
	p, err := s.node.Start(cmd)
	s.check(err)
	t.Cleanup(func() { p.Kill() })
	s.untilReached("web-0")
	s.hasLine("socketLoadBalancing is not possible", "no cgroup v2")
}
