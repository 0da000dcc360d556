// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/bpffs"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

const manifests = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
 "spec": {"clusterIP": "10.96.0.80", "ports": [{"port": 80, "protocol": "TCP"}]}}
---
{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
 "metadata": {"name": "web", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
 "ports": [{"port": 8080}], "endpoints": [{"addresses": ["10.244.1.3"], "nodeName": "n1"}]}
`

// TestSocketsOff has the chart's pod with socketLoadBalancing, which is killed. Its BPF programs serve connections,
// until the pod without the option has started, or until they are cleaned up as docs/install.md says. A clean-up that
// cannot remove them fails.
func TestSocketsOff(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables, kerneltest.CGroupBPF)
	c := withoutAPI(t)
	t.Cleanup(func() { c.check(socket.Remove(c.node.FD())) })
	c.command("ip route add unreachable 10.96.0.0/16")

	pins, err := bpffs.Folder("slipstream-sockets", c.node.FD())
	c.check(err)
	// run runs the chart's pod until it is ready, and kills it.
	run := func(sockets string) {
		t.Helper()
		p := c.podOfSockets(sockets)
		p.start()
		c.await("the readiness probe", func() error { return p.probe(p.main().ReadinessProbe) })
		if sockets == "tcp" {
			c.await("the last program's pin", func() error { _, err := os.Stat(filepath.Join(pins, "connect6")); return err })
		}
		c.check(p.Kill())
		<-p.Done()
	}
	// direct asks that sockets connect to the endpoint themselves, or that they do not.
	direct := func(want bool) {
		t.Helper()
		c.command("nft flush ruleset")
		if _, err := c.node.Connect(lab.TCP, netip.MustParseAddrPort("10.96.0.80:80")); (err == nil) != want {
			t.Fatalf("connect: %v, should work: %t", err, want)
		}
	}
	run("off")
	direct(false)
	run("tcp")
	direct(true)
	run("off")
	direct(false)

	run("tcp")
	p := c.podOfSockets("off")
	delete(p.run.Mounts, "/host/sys/fs/bpf")
	p.start()
	c.await("the readiness probe", func() error { return p.probe(p.main().ReadinessProbe) })
	c.check(p.Kill())
	<-p.Done()
	if !strings.Contains(p.output(), "The programs of sockets could not be removed") {
		t.Errorf("the pod does not see the pins, and does not say so:\n%s", p.output())
	}
	direct(true)
	if out, err := c.cleanup(nil); err == nil || !strings.Contains(out, "socketLoadBalancing") {
		t.Errorf("a clean-up that does not see the pins: %v, %s", err, out)
	}
	direct(true)
	if out, err := c.cleanup(map[string]hostMount{"/host": {Source: "/"}}); err != nil {
		t.Errorf("the clean-up of docs/install.md: %v, %s", err, out)
	}
	direct(false)
}

// withoutAPI is a node with a pod that serves manifests.
func withoutAPI(t *testing.T) *cluster {
	c := &cluster{TB: t}
	c.check(bpffs.Mount()) // as systemd does
	var err error
	c.node, err = kerneltest.NewLab(t).Node("n1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	})
	c.check(err)
	server, err := c.node.Pod("web", netip.MustParseAddr("10.244.1.3"))
	c.check(err)
	_, err = server.Serve(lab.TCP, netip.MustParseAddrPort("0.0.0.0:8080"))
	c.check(err)
	return c
}

func (c *cluster) podOfSockets(sockets string) *pod {
	c.Helper()
	return c.podOfManifests("slipstream: {socketLoadBalancing: '"+sockets+"'}", "--socket-load-balancing="+sockets)
}

// podOfManifests is the chart's pod with a directory of its own, and without API server.
func (c *cluster) podOfManifests(values string, flags ...string) *pod {
	c.Helper()
	own := *c
	own.dir = c.TempDir()
	dir := filepath.Join(own.dir, "manifests")
	c.check(os.Mkdir(dir, 0o755))
	c.check(os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(manifests), 0o644))
	p := newPod(&own, chart(c, values), "slipstream")
	p.run.Mounts["/manifests"] = hostMount{Source: dir, ReadOnly: true}
	p.run.Command = slices.DeleteFunc(p.run.Command, func(word string) bool { return strings.HasPrefix(word, "--config=") })
	p.run.Command = append(p.run.Command, "--manifests=/manifests", "--healthz-bind-address=0.0.0.0:10256")
	p.run.Command = append(p.run.Command, flags...)
	c.check(p.run.prepare())
	return p
}

// cleanup runs "slipstream cleanup" in a container like those of "kubectl debug node --profile=netadmin".
func (c *cluster) cleanup(mounts map[string]hostMount) (out string, err error) {
	c.Helper()
	p := c.podOfSockets("off")
	p.run.Mounts, p.run.Capabilities = mounts, []int{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW}
	p.run.Command = []string{"/usr/local/bin/slipstream", "cleanup", "--keep-kube-proxy"}
	c.check(p.run.prepare())
	p.start()
	err = p.Wait()
	return p.output(), err
}
