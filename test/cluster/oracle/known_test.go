// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

// known are the differences that are meant to be. Each is a row of a table in
// docs/services.md that says where Slipstream differs, by its first column.
var known = []struct {
	row string
	is  func(*Cluster, difference) bool
}{
	{"an endpoint without `nodeName` that is sent to itself", isHairpinOfUnknownNode},
	{"a port that a ClusterIP does not have", isUnusedPort},
	{"an address of a ServiceCIDR that no Service has", isUnusedClusterIP},
	{"a connection from the node to an external or load balancer address of a Service without endpoints", isRefusedOnNode},
	{"a connection to a load balancer's address of a Service without endpoints, from outside of its source ranges", isSourceFirst},
	{"a node port of a Service without endpoints (on this node, with `externalTrafficPolicy: Local`), at an address of the node that does not serve NodePorts", isWhereNoneAnswers},
	{"a connection from a node or a pod to a Service with `externalTrafficPolicy: Local`", isKeptOnNode},
	{"a traffic policy is Local, and this node has no endpoint", isElsewhereAllTheSame},
	{"which packets rules refuse or drop", isDroppedLater},
	{"an external IP that no interface of the node has, or a load balancer's that another Node has (k3s's ServiceLB: k3s-io/k3s #2804, #5000)", isNoVirtualServer},
}

// knownDifference returns the row that says why the two differ, or nothing.
func knownDifference(c *Cluster, d difference) string {
	for _, k := range known {
		if k.is(c, d) {
			return k.row
		}
	}
	return ""
}

// isHairpinOfUnknownNode says whether the only difference is that a pod that is an
// endpoint without nodeName reaches itself, seen as the node, where it did not with
// kube-proxy.
func isHairpinOfUnknownNode(c *Cluster, d difference) bool {
	if d.probe.From != PodEndpoint || !hasEndpointWithoutNode(c, d.probe) {
		return false
	}
	kube, ours := d.outcomes[0], d.outcomes[1]
	if !slices.Equal(kube.Failures, []string{Timeout}) || len(ours.Failures) > 0 || kube.Note != ours.Note && len(kube.Answers) > 0 {
		return false
	}
	// The same pod can be an endpoint at another port, in a slice that says on which node.
	rest := maps.Clone(ours.Answers)
	rest[Node1] = slices.DeleteFunc(slices.Clone(rest[Node1]), func(server string) bool {
		return strings.HasPrefix(server, PodEndpoint+":") && !slices.Contains(kube.Answers[Node1], server)
	})
	if len(rest[Node1]) == 0 {
		delete(rest, Node1)
	}
	return len(ours.Answers[Node1]) > len(rest[Node1]) && maps.EqualFunc(rest, kube.Answers, slices.Equal[[]string])
}

// hasEndpointWithoutNode says whether the probe's vantage is an endpoint of the Service
// in a slice that does not say on which node.
func hasEndpointWithoutNode(c *Cluster, p Probe) bool {
	svc := c.Named(p.Namespace, p.Service)
	if svc == nil {
		return false
	}
	i := slices.IndexFunc(Endpoints, func(e Endpoint) bool { return e.Name == p.From })
	address := Endpoints[i].Address[familyOf(p.To.Addr())].String()
	for _, s := range c.SlicesOf(svc) {
		for _, e := range s.Endpoints {
			if e.Addresses[0] == address && ptr.Deref(e.NodeName, "") == "" {
				return true
			}
		}
	}
	return false
}

// TestKnownAreDocumented holds the list against the documentation.
func TestKnownAreDocumented(t *testing.T) {
	const file = "../../../docs/services.md"
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range known {
		if !strings.Contains(string(doc), "\n| "+k.row+" |") {
			t.Errorf("%s has no row %q", file, k.row)
		}
	}
}

// TestKnownIsNarrow checks that the rule of a known difference does not match similar ones.
func TestKnownIsNarrow(t *testing.T) {
	var c *Cluster
	var p Probe
	for seed := uint64(1); p.From == ""; seed++ { // until a cluster has such an endpoint
		c = RandomCluster(seed)
		for _, candidate := range Plan(c) {
			if candidate.Kind == Reach && candidate.From == PodEndpoint && hasEndpointWithoutNode(c, candidate) {
				p = candidate
			}
		}
	}
	outcome := func(answers map[string][]string, failures ...string) Outcome {
		return Outcome{Answers: answers, Failures: failures}
	}
	other := p
	other.From = PodNoEndpoint
	for _, tc := range []struct {
		name       string
		probe      Probe
		kube, ours Outcome
		known      bool
	}{
		{"as is known", p, outcome(nil, "timeout"), outcome(map[string][]string{"n1": {"b:8080"}}), true},
		{"beside others", p, outcome(map[string][]string{"b": {"c:8080"}}, "timeout"), outcome(map[string][]string{"b": {"c:8080"}, "n1": {"b:8080"}}), true},
		{"again and again", p, outcome(nil, "timeout"), Outcome{Answers: map[string][]string{"n1": {"b:8080"}}, Note: "each source stays with its server"}, true},
		{"a difference of affinity", p, outcome(map[string][]string{"b": {"c:8080"}}, "timeout"), Outcome{Answers: map[string][]string{"b": {"c:8080"}, "n1": {"b:8080"}}, Note: "each source stays with its server"}, false},
		{"at another port beside one with a node", p, outcome(map[string][]string{"n1": {"b:8080"}}, "timeout"), outcome(map[string][]string{"n1": {"b:8080", "b:8081"}}), true},
		{"another one is missing", p, outcome(map[string][]string{"b": {"c:8080"}}, "timeout"), outcome(map[string][]string{"n1": {"b:8080"}}), false},
		{"from another pod", other, outcome(nil, "timeout"), outcome(map[string][]string{"n1": {"b:8080"}}), false},
		{"refused", p, outcome(nil, "refused"), outcome(map[string][]string{"n1": {"b:8080"}}), false},
		{"not masqueraded", p, outcome(nil, "timeout"), outcome(map[string][]string{"b": {"b:8080"}}), false},
		{"the other way round", p, outcome(map[string][]string{"n1": {"b:8080"}}), outcome(nil, "timeout"), false},
	} {
		d := difference{probe: tc.probe, outcomes: [2]Outcome{tc.kube, tc.ours}}
		if got := knownDifference(c, d) != ""; got != tc.known {
			t.Errorf("%s: known is %v, want %v", tc.name, got, tc.known)
		}
	}
}
