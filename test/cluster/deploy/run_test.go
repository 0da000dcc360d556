// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// applyAll applies the objects of the kinds that the API server knows.
func (c *cluster) applyAll(all objects) {
	c.Helper()
	for key, u := range all {
		if u.GetKind() == "ServiceMonitor" {
			continue
		}
		if err := c.apply(c.Context(), u); err != nil {
			c.Fatalf("%s: %v", key, err)
		}
	}
}

// TestPod runs the DaemonSet's pod as in the manifests: a Service works, the probes succeed,
// kube-proxy's leftovers are removed, and the pod uses all of its rights.
func TestPod(t *testing.T) {
	c := newCluster(t, "--feature-gates=WatchList=false") // the right to list is for such servers
	// The size of conntrack's table is the machine's.
	all := chart(t, "config: {clusterCIDR: 10.244.0.0/16, nodePortAddresses: [primary], conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 23h}}")
	c.applyAll(all)
	client, address := c.service()
	leftovers(c)
	p := newPod(c, all, "slipstream")
	p.initialize()
	if got := c.command("cat /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"); strings.TrimSpace(got) != "82800" {
		t.Errorf("after the init container, the timeout of established connections is %s", got)
	}
	p.start()
	c.await("the readiness probe", func() error { return p.probe(p.main().ReadinessProbe) })
	if err := p.probe(p.main().LivenessProbe); err != nil {
		t.Error(err)
	}
	c.await("the Service", func() error { _, err := client.Connect(lab.TCP, address); return err })
	c.await("kube-proxy's leftovers go", func() error { return left(c) })
	for line := range strings.Lines(p.output()) {
		if strings.HasPrefix(line, "E") || strings.HasPrefix(line, "W") {
			t.Errorf("in the log: %s", line)
		}
	}

	var want []string
	var rules []rbacv1.PolicyRule
	for _, name := range []string{"slipstream", "slipstream-options"} {
		var role rbacv1.ClusterRole
		c.check(runtime.DefaultUnstructuredConverter.FromUnstructured(all.get(t, "ClusterRole "+name).Object, &role))
		rules = append(rules, role.Rules...)
	}
	for _, r := range rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					want = append(want, strings.TrimSuffix(verb+" "+resource+"."+group, "."))
				}
			}
		}
	}
	const user = "system:serviceaccount:kube-system:slipstream"
	// To patch an Event is to say that it has come again, after minutes. Some kinds are only for
	// the fast path.
	flowtable := kerneltest.Flowtable.Probe() == nil
	want = slices.DeleteFunc(want, func(right string) bool {
		forFastPath := strings.Contains(right, "networkpolicies") || strings.HasSuffix(right, " pods") || strings.HasSuffix(right, " namespaces")
		return right == "patch events.events.k8s.io" || forFastPath && !flowtable
	})
	slices.Sort(want)
	c.await("the API server is asked for all that it may be asked for, and nothing else", func() error {
		asked, refused := c.audited(user)
		if got := slices.Sorted(maps.Keys(asked)); !slices.Equal(got, want) || len(refused) > 0 {
			return fmt.Errorf("asked: %v; refused: %v; may: %v", got, refused, want)
		}
		return nil
	})
}

// TestPodIPTables runs the pod in iptables mode, with the image that has iptables, where
// the node uses each of the two.
func TestPodIPTables(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			c := newCluster(t)
			all := chart(t, "config: {mode: iptables, clusterCIDR: 10.244.0.0/16, conntrack: {maxPerCore: 0}}")
			c.applyAll(all)
			client, address := c.service()
			c.command("iptables-" + variant + " -w 10 -t mangle -N KUBE-IPTABLES-HINT")
			p := newPodOf(c, all, "slipstream", rootFSIPTables)
			p.initialize() // also for NodePorts on loopback addresses
			if got := c.command("cat /proc/sys/net/ipv4/conf/all/route_localnet"); strings.TrimSpace(got) != "1" {
				t.Errorf("after the init container, route_localnet is %s", got)
			}
			p.start()
			c.await("the readiness probe", func() error { return p.probe(p.main().ReadinessProbe) })
			c.await("the Service", func() error { _, err := client.Connect(lab.TCP, address); return err })
			if rules := c.command("iptables-" + variant + "-save -t nat"); !strings.Contains(rules, "SLIP-SERVICES") {
				t.Errorf("iptables-%s has no rules of Slipstream's:\n%s", variant, rules)
			}
			for line := range strings.Lines(p.output()) {
				if strings.HasPrefix(line, "E") || strings.HasPrefix(line, "W") {
					t.Errorf("in the log: %s", line)
				}
			}
		})
	}
}

// TestPodIPVS runs the pod in IPVS mode, as the chart wants it: privileged, as it writes the kernel's settings. The User
// Mode Linux kernels have IPVS; there is no API server, which is slow there.
func TestPodIPVS(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables, kerneltest.IPVS)
	c := withoutAPI(t)
	p := c.podOfManifests("config: {mode: ipvs}\nprivileged: true", "--proxy-mode=ipvs")
	p.start()
	c.await("the readiness probe", func() error { return p.probe(p.main().ReadinessProbe) })
	c.await("the Service", func() error {
		_, err := c.node.Connect(lab.TCP, netip.MustParseAddrPort("10.96.0.80:80"))
		return err
	})
	if table := c.command("cat /proc/net/ip_vs"); !strings.Contains(table, "TCP  0A600050:0050 rr") {
		t.Errorf("IPVS has\n%s", table)
	}
	for line := range strings.Lines(p.output()) {
		if strings.HasPrefix(line, "E") || strings.HasPrefix(line, "W") {
			t.Errorf("in the log: %s", line)
		}
	}
}

// TestCapabilities runs the pod without each of its capabilities: none can be left out.
func TestCapabilities(t *testing.T) {
	c := newCluster(t)
	all := chart(t, "")
	c.applyAll(all)
	client, address := c.service()
	p := newPod(c, all, "slipstream")
	have := p.run.Capabilities
	if len(have) == 0 {
		t.Error("there are none")
	}
	for _, without := range have {
		p.run.Capabilities = slices.DeleteFunc(slices.Clone(have), func(c int) bool { return c == without })
		p.start()
		works := func() bool { return p.probe(p.main().ReadinessProbe) == nil }
		c.await(fmt.Sprintf("without capability %d, it ends or says why it does not work", without), func() error {
			select {
			case <-p.Done():
				return nil
			default:
			}
			if strings.Contains(p.output(), "operation not permitted") {
				return nil
			}
			return fmt.Errorf("ready: %v, log:\n%s", works(), p.output())
		})
		if _, err := client.Connect(lab.TCP, address); err == nil || works() {
			t.Errorf("works without capability %d", without)
		}
		c.check(p.Kill())
	}
	p.run.Capabilities = have
	p.start()
	c.await("with all of them, the readiness probe", func() error { return p.probe(p.main().ReadinessProbe) })
}

// leftovers leaves something of each kind of kube-proxy's on the node, where its kernel
// has that.
func leftovers(c *cluster) {
	c.Helper()
	for _, command := range []string{
		"nft add table ip kube-proxy",
		"iptables-nft -w 10 -t nat -N KUBE-SERVICES",
		"iptables-nft -w 10 -t nat -A OUTPUT -j KUBE-SERVICES",
		"ip6tables-nft -w 10 -t filter -N KUBE-FORWARD",
	} {
		c.command(command)
	}
	if _, err := os.Stat("/proc/net/ip_tables_names"); err == nil {
		c.command("iptables-legacy -w 10 -t nat -N KUBE-SERVICES")
		c.command("iptables-legacy -w 10 -t nat -A PREROUTING -j KUBE-SERVICES")
	}
}

// left returns an error while some of kube-proxy's objects exist.
func left(c *cluster) error {
	commands := []string{"nft list ruleset"}
	if _, err := os.Stat("/proc/net/ip_tables_names"); err == nil {
		commands = append(commands, "iptables-legacy-save")
	}
	for _, command := range commands {
		if out := c.command(command); strings.Contains(out, "kube-proxy") || strings.Contains(out, "KUBE-") {
			return fmt.Errorf("%s: %s", command, out)
		}
	}
	return nil
}

func (c *cluster) command(line string) string {
	c.Helper()
	words := strings.Fields(line)
	out, err := c.node.Run(c.Context(), words[0], words[1:]...)
	c.check(err)
	return string(out)
}
