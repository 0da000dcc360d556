// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/manifest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Mode makes the dataplane of a node; nil runs stories without a kernel.
type Mode func(dataplane.Config) (dataplane.Dataplane, error)

// Dir is the folder of the stories.
const Dir = "stories"

// lacks reports whether a story is of what a mode does not have. For NodePorts on loopback addresses,
// iptables mode has route_localnet.
func lacks(mode, name string) bool {
	return mode == "iptables" && name == "nodeport-loopback" || mode != "" && mode != "nftables" && (strings.HasPrefix(name, "port-ranges") || name == "limits")
}

// basic has the stories that use every part of a mode's tables.
var basic = []string{
	"both-policies", "clusterip", "external-ips", "external-traffic-policy", "hairpin", "host-network",
	"internal-traffic-policy", "load-balancer", "masquerade-cluster-cidr", "nodeport", "not-ready", "restart",
	"service-cidr", "source-ranges", "source-ranges-node", "udp-flows",
}

// few has some of them. Where a mode runs on several kernels, one of the User Mode Linux kernels, which are slow, has
// these alone.
var few = []string{"both-policies", "hairpin", "restart", "source-ranges", "udp-flows"}

// more has the other stories that use what nf_tables or conntrack may do otherwise on an older kernel: ranges,
// timeouts, meters, large sets, and SCTP. The rest are about decisions before there are tables.
var more = []string{
	"limits", "many-endpoints", "nodeport-loopback", "port-ranges", "port-ranges-affinity", "port-ranges-failover", "sctp",
	"sctp-external", "session-affinity", "session-affinity-external", "session-affinity-timeout", "udp-flows-changed",
	"udp-flows-ended", "udp-flows-unready", "unreachable-endpoints",
}

// Run runs every story as a subtest, except where skip, if not nil, returns a reason for
// the story's name. The mode's name, up to a "-", selects expectations that only it has (see
// connect).
func Run(t *testing.T, modeName string, mode Mode, skip func(name string) string) {
	files, err := filepath.Glob(filepath.Join(Dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories in %s (%v)", Dir, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		if lacks(modeName, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if skip != nil {
				if why := skip(name); why != "" {
					t.Skip(why)
				}
			}
			t.Parallel() // a story waits for clients that get no answer, mostly
			run(t, file, &story{modeName: modeName, mode: mode})
		})
	}
}

// story is a story that runs.
type story struct {
	modeName  string
	mode      Mode
	algorithm desired.Algorithm // of all Services
	nodes     []*node
	topology  *topology // nil without a kernel
	machines  map[string]machine
	objects   objects
}

func run(t *testing.T, file string, s *story) {
	defer s.close(t)
	datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
		out := s.directive(t, d)
		if s.inIPVS() && slices.Contains([]string{"apply", "delete", "addresses", "state"}, d.Cmd) {
			return d.Expected // NodePorts have other frontends (desired.Config.IPVS)
		}
		if s.algorithm.Hashes() && d.Cmd == "state" {
			return d.Expected // it describes the tables
		}
		return out
	})
}

func (s *story) inIPVS() bool { return strings.HasPrefix(s.modeName, "ipvs") }

func (s *story) directive(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "require":
		if s.mode != nil {
			require(t, d)
		}
		return "ok\n"
	case "lab":
		return s.lab(t, d)
	case "serve":
		return s.serve(t, d)
	case "routes":
		return s.routes(t, d)
	case "apply":
		return s.apply(t, d)
	case "delete":
		return s.delete(t, d)
	case "addresses":
		return s.addresses(t, d)
	case "state":
		all := s.node(t, d).content().Lines()
		if len(all) == 0 {
			return "nothing\n"
		}
		return strings.Join(all, "\n") + "\n"
	case "connect":
		if s.topology == nil {
			return d.Expected
		}
		return s.connect(t, d)
	case "explain":
		return s.explain(t, d)
	case "wait":
		return s.wait(t, d)
	case "restart":
		return s.restart(t, d)
	}
	d.Fatalf(t, "no such directive: %s", d.Cmd)
	return ""
}

// connect makes connections and describes their results. An argument with the mode's name is
// the result in that mode instead, such as ipvs=refused; with ipvs=undefined there are no
// connections in that mode.
func (s *story) connect(t *testing.T, d *datadriven.TestData) string {
	want := d.Expected
	mode, _, _ := strings.Cut(s.modeName, "-")
	for _, a := range d.CmdArgs {
		if a.Key == mode {
			want = a.Vals[0] + "\n"
		}
	}
	if want == "undefined\n" {
		return d.Expected
	}
	got := s.topology.connect(t, d)
	if mode == "ipvs" && got != want && strings.Contains(got, "timeout") {
		// A node connects to another one's NodePort, and soon masquerades a connection to
		// the same endpoint with the same port, by chance. That node's IPVS takes the answer
		// for one of the first connection. Two in a row are a failure.
		t.Logf("%s: again after %q", d.Pos, got)
		got = s.topology.connect(t, d)
	}
	if wrong := s.contradicts(t, d, got); wrong != "" {
		t.Errorf("%s: %s%s", d.Pos, got, wrong)
	}
	if got == want {
		return d.Expected
	}
	return got
}

// node returns the node that a directive names, or the first.
func (s *story) node(t *testing.T, d *datadriven.TestData) *node {
	var name string
	if d.HasArg("node") {
		d.ScanArgs(t, "node", &name)
	}
	for _, n := range s.nodes {
		if cmp.Or(name, n.name) == n.name {
			return n
		}
	}
	d.Fatalf(t, "there is no node %q; a story starts with lab", name)
	return nil
}

// program applies each node's change to its dataplane, and returns the description of the
// change of the directive's node.
func (s *story) program(t *testing.T, d *datadriven.TestData) (out string) {
	shown := s.node(t, d)
	for _, n := range s.nodes {
		change := n.program(t, d)
		if n == shown {
			out = change + "\n"
		}
	}
	return out
}

// wait waits, for the kernel.
func (s *story) wait(t *testing.T, d *datadriven.TestData) string {
	if len(d.CmdArgs) != 1 {
		d.Fatalf(t, "wait takes one duration")
	}
	pause, err := time.ParseDuration(d.CmdArgs[0].Key)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	if s.topology != nil {
		time.Sleep(pause)
	}
	return "ok\n"
}

// restart restarts the proxy of a node, or of all, with the kernel's content unchanged.
func (s *story) restart(t *testing.T, d *datadriven.TestData) string {
	only := s.node(t, d)
	for _, n := range s.nodes {
		if n == only || !d.HasArg("node") {
			n.restart(t, d, s)
		}
	}
	return "ok\n"
}

func (s *story) close(t *testing.T) {
	for _, n := range s.nodes {
		n.close(t)
	}
}

// lines returns the lines of a directive's input that are not empty.
func lines(input string) (all []string) {
	for line := range strings.Lines(input) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// objects are the existing ones, in the order of their last change.
type objects []source.Object

// set adds an object or replaces its former version.
func (all *objects) set(o source.Object) {
	all.remove(o)
	*all = append(*all, o)
}

// remove removes an object and reports whether it existed.
func (all *objects) remove(o source.Object) bool {
	before := len(*all)
	*all = slices.DeleteFunc(*all, func(p source.Object) bool { return source.Name(p) == source.Name(o) })
	return len(*all) < before
}

// addTo adds all objects to a state, the last one first, to vary their order.
func (all objects) addTo(s *desired.State) {
	for _, o := range slices.Backward(all) {
		proxy.ApplyEvent(s, source.Event{Type: source.Set, Object: o})
	}
}

func (s *story) apply(t *testing.T, d *datadriven.TestData) string {
	content := manifest.Decode(d.Pos, []byte(d.Input))
	var out strings.Builder
	for _, err := range content.Errors {
		fmt.Fprintln(&out, "refused:", strings.TrimPrefix(err.Error(), d.Pos+": "))
	}
	for _, kind := range content.Ignored {
		d.Fatalf(t, "%s: not a kind that is read", kind)
	}
	for _, o := range content.Objects {
		s.objects.set(o.Object)
		s.send(source.Event{Type: source.Set, Object: o.Object})
	}
	return out.String() + s.program(t, d)
}

func (s *story) delete(t *testing.T, d *datadriven.TestData) string {
	for _, line := range lines(d.Input) {
		kind, name, _ := strings.Cut(line, " ")
		var o source.Object
		switch kind {
		case "Service":
			o = &corev1.Service{}
		case "EndpointSlice":
			o = &discoveryv1.EndpointSlice{}
		case "Node":
			o = &corev1.Node{}
		case "ServiceCIDR":
			o = &networkingv1.ServiceCIDR{}
		default:
			d.Fatalf(t, "cannot delete %q", line)
		}
		if namespace, rest, ok := strings.Cut(name, "/"); ok {
			o.SetNamespace(namespace)
			name = rest
		}
		o.SetName(name)
		if !s.objects.remove(o) {
			d.Fatalf(t, "%s does not exist", line)
		}
		s.send(source.Event{Type: source.Delete, Object: o})
	}
	return s.program(t, d)
}

// send passes an event to every node.
func (s *story) send(e source.Event) {
	for _, n := range s.nodes {
		proxy.ApplyEvent(n.state, e)
	}
}
