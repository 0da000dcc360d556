// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/node/drain"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// outputter runs commands in a network namespace.
type outputter interface {
	Output(cmd *exec.Cmd) ([]byte, error)
}

type drainedResult struct {
	drain.Result
	failed string
}

// drained runs 'slipstream drained' somewhere, after other words of a command.
func (s *site) drained(where outputter, socket string, words []string, args ...string) drainedResult {
	s.t.Helper()
	exe, err := os.Executable()
	s.check(err)
	words = append(words, exe)
	cmd := exec.Command(words[0], append(words[1:], append([]string{"drained", "-o", "json", "--socket", socket}, args...)...)...)
	cmd.Env = append(os.Environ(), asMain+"=1")
	out, err := where.Output(cmd)
	var r drainedResult
	if failed := json.Unmarshal(out, &r.Result); failed != nil {
		s.t.Fatal(errors.Join(err, failed), string(out))
	}
	if err != nil {
		r.failed = err.Error()
	}
	return r
}

var textOfDrained = regexp.MustCompile(`^max-wait: waited 1\.\d+s; \d+ new connections came, and they have not ceased\n$`)

// TestDrained has a pod wait, while clients connect, until they do so no more. When it ends then, no connection fails.
func TestDrained(t *testing.T) {
	s := newSite(t)
	socket := t.TempDir() + "/pods/drained.sock"
	s.save("web.yaml", web(0, 1))
	p := s.run("--status-socket", socketPath(t), "--pod-socket", socket)
	s.untilReached("web-0", "web-1")
	load, err := s.client.StartLoad(t.Context(), lab.TCP, webAddr, lab.LoadOptions{Workers: 2, Pace: 20 * time.Millisecond, Connect: []lab.ConnectOption{lab.Timeout(patience)}})
	s.check(err)

	if r := s.drained(s.servers[1], socket, nil, "--min-wait", "100ms", "--quiet", "1s", "--max-wait", "3s"); r.Quiet || r.Connections == 0 || r.Blind != "" || r.Waited < 3*time.Second {
		t.Errorf("a pod to which connections come: %+v", r)
	}

	cmd := s.command("drained", "--socket", socket, "--min-wait", "100ms", "--quiet", "1s", "--max-wait", "1500ms")
	if out, err := s.servers[1].Output(cmd); err != nil || !textOfDrained.Match(out) {
		t.Errorf("%s %v", out, err)
	}

	// The proxy is restarted while the pod waits, and the Service loses the pod.
	waits := make(chan drainedResult, 1)
	go func() {
		r := s.drained(s.servers[0], socket, nil, "--min-wait", "2s", "--quiet", "1s", "--max-wait", "1m")
		s.servers[0].Close()
		waits <- r
	}()
	time.Sleep(time.Second)
	s.check(p.Close())
	s.run("--status-socket", socketPath(t), "--pod-socket", socket)
	time.Sleep(time.Second)
	s.save("web.yaml", web(1))
	if r := <-waits; !r.Quiet || r.Waited < 2*time.Second || r.Waited > 50*time.Second {
		t.Errorf("a pod that the Service loses: %+v", r)
	}
	time.Sleep(500 * time.Millisecond)
	if stats := load.Stop(); stats.OK == 0 || stats.Failed != 0 {
		t.Errorf("connections failed: %v", stats)
	}
}

// TestDrainedBlind has those wait of whom the node cannot tell whether connections come.
func TestDrainedBlind(t *testing.T) {
	s := newSite(t)
	socket := t.TempDir() + "/pods/drained.sock"
	short := []string{"--min-wait", "300ms", "--quiet", "300ms", "--max-wait", "2s"}
	blind := func(what, why string, r drainedResult) {
		t.Helper()
		if r.Quiet || !strings.Contains(r.Blind+r.failed, why) || r.Waited < 2*time.Second || r.Waited > 20*time.Second {
			t.Errorf("%s: %+v", what, r)
		}
	}
	web0, web2 := s.servers[0], s.servers[2]
	blind("no proxy", "no such file", s.drained(web0, socket, nil, short...))

	s.save("web.yaml", web(0))
	s.run("--status-socket", socketPath(t), "--pod-socket", socket)
	s.untilReached("web-0")
	s.until("socket", func() bool { _, err := os.Stat(socket); return err == nil })
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	blind("the node itself", "no interface of the node", s.drained(s.node, socket, nil, short...))
	// Root in a container, and everybody where user namespaces are allowed, can make one with any address.
	stolen := []string{"unshare", "-n", "sh", "-c", `ip link set lo up; ip addr add 10.244.1.10/32 dev lo; exec "$@"`, "sh"}
	blind("a namespace with another pod's address", "no interface of the node", s.drained(web2, socket, stolen, short...))

	for range 100 { // others that say nothing
		if c, err := net.Dial("unix", socket); err == nil {
			defer c.Close()
		}
	}

	// A pod that only the node connects to, as the kubelet does, may be one whose connections pass conntrack by.
	stop := make(chan bool)
	probed := make(chan error, 1)
	go func() {
		var err error
		for {
			select {
			case <-stop:
				probed <- err
				return
			default:
				_, failed := s.node.Run(t.Context(), "bash", "-c", "exec 3<>/dev/tcp/10.244.1.12/8080")
				err = errors.Join(err, failed)
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	blind("a pod that only the node connects to", "has not seen any connection", s.drained(web2, socket, nil, short...))
	if _, err := web2.Run(t.Context(), "bash", "-c", "exec 3<>/dev/tcp/10.244.1.2/8080 || exec 3<>/dev/tcp/10.244.1.11/8080"); err != nil {
		t.Fatal(err)
	}
	if r := s.drained(web2, socket, nil, short...); !r.Quiet || r.Connections != 0 {
		t.Errorf("a pod with a connection of its own, and the kubelet's probes: %+v", r)
	}
	close(stop)
	s.check(<-probed)

	// Conntrack forgets connections that are reset after ten seconds, which may be before the pod has waited enough.
	sysctl := func(name, value string) {
		t.Helper()
		_, err := s.node.Run(t.Context(), "sh", "-c", "echo "+value+" > /proc/sys/net/netfilter/"+name)
		s.check(err)
	}
	sysctl("nf_conntrack_tcp_timeout_close", "4")
	_, err := s.client.Connect(lab.TCP, webAddr, lab.Timeout(patience))
	s.check(err)
	if r := s.drained(web0, socket, nil, "--min-wait", "6s", "--max-wait", "9s"); !r.Quiet || r.Connections != 0 {
		t.Errorf("a pod whose last connection was reset: %+v", r)
	}

	sysctl("nf_conntrack_events", "0")
	blind("a kernel that reports no connections", "nf_conntrack_events", s.drained(web0, socket, nil, short...))
}

// TestDrainedDefault: without --min-wait, silence suffices for a pod that has had many connections, but not for one that has
// had few, nor for the last one by which a load balancer's health check succeeds.
func TestDrainedDefault(t *testing.T) {
	s := newSite(t)
	socket := t.TempDir() + "/pods/drained.sock"
	local := func(servers ...int) string {
		return strings.Replace(web(servers...), "{clusterIP:", "{type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 30001, clusterIP:", 1)
	}
	s.save("web.yaml", web(0))
	s.run("--status-socket", socketPath(t), "--pod-socket", socket)
	s.untilReached("web-0")
	silent := func(what string, quiet bool) {
		t.Helper()
		if r := s.drained(s.servers[0], socket, nil, "--max-wait", "8s"); r.Quiet != quiet || r.Blind != "" || r.failed != "" {
			t.Errorf("%s: %+v", what, r)
		}
	}
	silent("few connections", false)
	for range 310 {
		c, err := s.client.Stream(lab.TCP, webAddr, time.Hour, lab.Timeout(patience))
		s.check(err)
		defer c.Close()
	}
	silent("many connections", true)
	s.save("web.yaml", local(0))
	s.until("the health check", func() bool { return strings.Contains(s.log.String(), "spec.ports[0].nodePort: not set") })
	silent("last for the health check", false)
	s.save("web.yaml", local(0, 1))
	s.untilReached("web-0", "web-1")
	silent("not the last", true)
}
