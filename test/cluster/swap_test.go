// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

// swapped is a Service that is used while its proxies are replaced.
type swapped struct {
	*env
	svc  *corev1.Service
	pods []*runningPod
	run  *traffic
}

func newSwapped(e *env) *swapped {
	s := &swapped{env: e, pods: []*runningPod{e.pod(0, "web"), e.pod(1, "web")}}
	s.svc = e.service("web", nodePorts)
	return s
}

// use makes new connections all the time, and some that stay.
func (s *swapped) use() {
	s.Helper()
	s.everywhere(s.svc, s.pods...)
	for _, n := range s.Nodes {
		s.reaches(&s.Outside.Machine, lab.TCP, nodePort(s.svc, n, false), s.pods...)
	}
	s.run = s.everyWay(s.svc)
	for i := range s.Nodes {
		for _, ipv6 := range families {
			s.run.stream(s.client(i), lab.TCP, clusterIP(s.svc, ipv6))
			s.run.stream(s.client(i), lab.UDP, clusterIP(s.svc, ipv6))
		}
		s.run.stream(&s.Outside.Machine, lab.TCP, nodePort(s.svc, s.Nodes[i], false))
		s.run.stream(&s.Nodes[i].Machine, lab.TCP, clusterIP(s.svc, false))
	}
	s.run.more(5)
}

// grows checks that a new pod is used from everywhere, by the present proxies.
func (s *swapped) grows() {
	s.Helper()
	s.pods = append(s.pods, s.pod(len(s.pods)%nodes, "web"))
	s.everywhere(s.svc, s.pods...)
	s.run.more(20)
}

// inPlace starts a proxy in kube-proxy's place: by its name, and with the same
// configuration file, in which the mode is.
func (e *env) inPlace(mode string) func(*proxies.Options) {
	return func(o *proxies.Options) {
		if o.Binary != "" { // Slipstream's
			o.Binary = asKubeProxy(e.T, e.dir)
		}
		o.Configure = func(config map[string]any) { config["mode"] = mode }
	}
}

// TestSwap replaces kube-proxy on nodes in use by Slipstream, one after the other, and Slipstream by kube-proxy again,
// and nothing else. While some nodes have the one and some the other, pods and Services come. No connection fails
// meanwhile, and none is cut. Where no mode is set, as kubeadm has it, kube-proxy is in iptables mode and Slipstream in
// nftables mode.
func TestSwap(t *testing.T) {
	for _, test := range []struct {
		name, mode string
		kind       proxies.Kind
	}{
		{"nftables", "nftables", proxies.KubeProxyNFTables},
		{"iptables", "iptables", proxies.KubeProxyIPTables},
		{"no mode", "", proxies.KubeProxyIPTables},
		{"ipvs", "ipvs", proxies.KubeProxyIPVS},
	} {
		t.Run(test.name, func(t *testing.T) {
			kind := test.kind
			if kind != proxies.KubeProxyNFTables {
				kerneltest.Require(t, kerneltest.IPTablesNFT)
			}
			if test.mode == "iptables" || test.mode == "ipvs" {
				kerneltest.Require(t, kerneltest.IPSet)
			}
			if test.mode == "ipvs" {
				kerneltest.Require(t, kerneltest.IPVS)
			}
			e := newEnv(t)
			s := newSwapped(e)
			before := e.startEverywhere(kind, e.inPlace(test.mode))
			s.use()

			// There.
			var after []*proxies.Proxy
			var others []*runningPod
			for i, n := range e.Nodes {
				if len(e.leftovers(n)) == 0 {
					t.Fatalf("%s: nothing of kube-proxy's is found", n.Name())
				}
				e.stop(before[i])
				after = append(after, e.start(proxies.Slipstream, n, e.inPlace(test.mode)))
				if i+1 < len(e.Nodes) { // nodes of both kinds, which may stay so
					s.grows()
					others = append(others, e.pod(i, "other"), e.pod(i+1, "other")) // one with Slipstream, one without
					e.everywhere(e.service("other", nodePorts), others...)
					s.run.fine("beside nodes with kube-proxy")
				}
			}
			for _, n := range e.Nodes {
				e.until("nothing of kube-proxy's is left on "+n.Name(), func() error {
					if left := e.leftovers(n); len(left) > 0 {
						return fmt.Errorf("%q", left)
					}
					return nil
				})
			}
			s.grows()
			s.run.fine("after the swap")

			// And back.
			e.startEverywhere(kind, e.inPlace(test.mode))
			for _, n := range e.Nodes {
				e.untilProgrammed(kind, n, s.svc)
			}
			for i, n := range e.Nodes {
				e.stop(after[i])
				e.cleanup(t.Context(), proxies.Slipstream, n)
				e.noSlipstream(n)
			}
			s.grows()
			s.run.fine("after the way back")
		})
	}
}

// TestRestart stops proxies that are in use, in an orderly way and by SIGKILL, and starts them
// again. Changes in between are programmed then.
func TestRestart(t *testing.T) {
	e := newEnv(t)
	s := newSwapped(e)
	running := e.startAll()
	s.use()
	for _, end := range []func(*proxies.Proxy){
		e.stop,
		func(p *proxies.Proxy) { e.check(p.Close()) }, // by SIGKILL
	} {
		for i := range running {
			end(running[i])
		}
		s.run.more(20)
		fresh := e.pod(2, "web")
		s.pods = append(s.pods, fresh)
		for i, n := range e.Nodes {
			running[i] = e.start(proxyKind(t), n)
		}
		s.everywhere(s.svc, s.pods...)
		s.run.more(20)
	}
}

// ofKubeProxy finds tables and chains by kube-proxy's names, and ofKubelet those chains among
// them that kubelet has too. kube-proxy, which makes the first one, leaves it.
var (
	ofKubeProxy = regexp.MustCompile(`(?m)^table \S+ kube-proxy\b|^\s*chain KUBE-\S+`)
	ofKubelet   = []string{"chain KUBE-FIREWALL", "chain KUBE-IPTABLES-HINT", "chain KUBE-KUBELET-CANARY", "chain KUBE-MARK-DROP"}
)

// leftovers lists the tables, chains and IP sets that kube-proxy, in any mode, has on a node.
func (e *env) leftovers(n *site.Node) (found []string) {
	e.Helper()
	out, err := n.Run(e.Context(), "nft", "list", "ruleset")
	e.check(err)
	for _, name := range ofKubeProxy.FindAllString(string(out), -1) {
		if name = strings.TrimSpace(name); !slices.Contains(ofKubelet, name) {
			found = append(found, name)
		}
	}
	if _, missing := exec.LookPath("ipset"); missing != nil {
		return found
	}
	out, err = n.Run(e.Context(), "ipset", "list", "-name")
	e.check(err)
	for name := range strings.Lines(string(out)) {
		if strings.HasPrefix(name, "KUBE-") {
			found = append(found, "IP set "+strings.TrimSpace(name))
		}
	}
	return found
}

// ofOthers are rules of iptables that are not kube-proxy's.
var ofOthers = regexp.MustCompile(`(?m)^-A SLIP-.*$`)

// untilProgrammed waits until kube-proxy has programmed a Service on a node, even if another
// proxy has too.
func (e *env) untilProgrammed(kind proxies.Kind, n *site.Node, svc *corev1.Service) {
	e.Helper()
	var lists [][]string
	for _, ipv6 := range families {
		list := []string{"nft", "list", "table", "ip", "kube-proxy"}
		switch {
		case kind == proxies.KubeProxyIPVS && ipv6:
			list = []string{"ipset", "list", "KUBE-6-CLUSTER-IP"}
		case kind == proxies.KubeProxyIPVS:
			list = []string{"ipset", "list", "KUBE-CLUSTER-IP"}
		case kind == proxies.KubeProxyIPTables && ipv6:
			list = []string{"ip6tables-save", "-t", "nat"}
		case kind == proxies.KubeProxyIPTables:
			list = []string{"iptables-save", "-t", "nat"}
		case ipv6:
			list[3] = "ip6"
		}
		lists = append(lists, list)
	}
	e.until(fmt.Sprintf("%s has Service %s on %s", kind, svc.Name, n.Name()), func() error {
		for i, list := range lists {
			out, err := n.Run(e.Context(), list[0], list[1:]...)
			if err != nil {
				return err
			}
			theirs := ofOthers.ReplaceAllString(string(out), "")
			if ip := clusterIP(svc, families[i]).Addr(); !strings.Contains(theirs, ip.String()) {
				return fmt.Errorf("%s knows nothing of %v", strings.Join(list, " "), ip)
			}
		}
		return nil
	})
}
