// SPDX-License-Identifier: Apache-2.0

// Package dataplanetest has the tests that every dataplane has to pass on a real kernel, and
// helpers for further tests.
package dataplanetest

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Backend is a dataplane that can read its content back.
type Backend interface {
	dataplane.Dataplane
	dataplane.Reader
	Supports(desired.Algorithm) error
}

// Reconcile programs the whole content of a state.
func Reconcile(t testing.TB, b dataplane.Dataplane, s *desired.State) {
	t.Helper()
	if _, err := b.Reconcile(t.Context(), &s.Full().Change); err != nil {
		t.Fatal(err)
	}
}

// Apply programs the change of a state. If the change is a Rebuild, it checks that Apply
// refuses it, and programs the whole content.
func Apply(t testing.TB, b dataplane.Dataplane, s *desired.State) {
	t.Helper()
	c := &s.Change().Change
	if c.Rebuild {
		if _, err := b.Apply(t.Context(), c); err == nil {
			t.Fatal("Apply accepted a change with Rebuild")
		}
		Reconcile(t, b, s)
		return
	}
	stats, err := b.Apply(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if s.Pending() || len(stats.Rest) > 0 { // a large change has parts
		Apply(t, b, s)
	}
}

// Has fails the test unless the kernel has the content of a state.
func Has(t testing.TB, kernel dataplane.Reader, s *desired.State) {
	t.Helper()
	v, err := dataplane.Verify(t.Context(), kernel, &s.Full().Change)
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Differences) > 0 {
		t.Fatalf("the kernel differs:\n%s", v)
	}
}

// Hosts returns the host numbers 1 to n.
func Hosts(n int) (all []int) {
	for i := range n {
		all = append(all, 1+i)
	}
	return all
}

// RunIn runs a command with input in a network namespace, and returns its output.
func RunIn(t testing.TB, ns *lab.Namespace, input, name string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	err := ns.Do(func() error {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &out
		return cmd.Run()
	})
	if err != nil {
		t.Fatalf("%s %s: %v: %.2000s", name, strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

// ReloadRuleset saves the ruleset with a nft command, deletes it and loads it again, as
// nftables.service does, with more rules loaded in between. It returns the saved text.
func ReloadRuleset(t testing.TB, ns *lab.Namespace, nft, between string) (saved string) {
	t.Helper()
	saved = RunIn(t, ns, "", nft, "list", "ruleset")
	RunIn(t, ns, saved, nft, "--check", "-f", "-") // beside what it was saved from
	RunIn(t, ns, "flush ruleset\n"+between+"\n"+saved, nft, "-f", "-")
	return saved
}

// SameRuleset fails the test unless the ruleset is the saved one.
func SameRuleset(t testing.TB, ns *lab.Namespace, nft, saved string) {
	t.Helper()
	want, got := listed(saved), listed(RunIn(t, ns, "", nft, "list", "ruleset"))
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("the saved and loaded ruleset has %q where it had %q", got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("the saved and loaded ruleset has %d lines, had %d", len(got), len(want))
	}
}

var changing = regexp.MustCompile(` expires \w+|\s*# count \d+`)

// listed returns the lines of a listing in alphabetical order, each element as a line: the
// order of elements depends on a random number in the kernel.
func listed(ruleset string) []string {
	all := strings.FieldsFunc(changing.ReplaceAllString(ruleset, ""), func(r rune) bool { return r == '\n' || r == ',' })
	for i, line := range all {
		all[i] = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "elements = { "), " }")
	}
	slices.Sort(all)
	return all
}

// Rejected sends connections that a dataplane rejects, one for each reason, and compares the
// numbers of packets in read. rewrite has the dataplane write its rules again, which loses none.
func Rejected(t *testing.T, s *Street, b dataplane.Dataplane, read func() (dataplane.Rejected, error), rewrite func(*desired.State)) {
	t.Helper()
	state := desired.New(desired.Config{NodeName: "n1"})
	state.SetServiceCIDR(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}})
	web := Service(corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerSourceRanges: []string{"172.16.0.0/12"}})
	web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	state.SetService(web)
	state.SetEndpointSlice(Slice(0))
	for i, name := range []string{"empty", "remote"} {
		state.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{
				ClusterIP: fmt.Sprint("10.96.0.", 2+i), Ports: []corev1.ServicePort{{Port: 80}},
				InternalTrafficPolicy: new([]corev1.ServiceInternalTrafficPolicy{corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal}[i]),
			},
		})
	}
	remote := Slice(0)
	remote.Name, remote.Labels = "remote-1", map[string]string{discoveryv1.LabelServiceName: "remote"}
	remote.Endpoints[0].NodeName = new("n2")
	state.SetEndpointSlice(remote)
	Reconcile(t, b, state)

	connections := []struct{ to, reason, outcome string }{
		{"10.96.0.1:81", dataplane.UnknownPort, "refused"},
		{"10.96.0.2:80", dataplane.NoEndpoints, "refused"},
		{"10.96.0.3:80", dataplane.NoLocalEndpoints, "timeout"},
		{"10.96.0.99:80", dataplane.UnallocatedAddress, "timeout"},
		{"192.0.2.1:80", dataplane.SourceNotAllowed, "timeout"},
		{"10.96.0.1:80", "", "ok"},
	}
	counts := func() map[string]uint64 {
		t.Helper()
		n, err := read()
		if err != nil || len(n[desired.IPv4]) != len(connections)-1 {
			t.Fatalf("%v, error %v", n, err)
		}
		return n[desired.IPv4]
	}
	before := counts()
	for round := range 2 {
		for _, c := range connections {
			wait := 10 * time.Second
			if c.outcome == "timeout" {
				wait = 300 * time.Millisecond
			}
			_, err := s.Client.Connect(lab.TCP, netip.MustParseAddrPort(c.to), lab.Timeout(wait))
			if got := lab.Outcome(err); got != c.outcome {
				t.Errorf("to %s: %s, want %s", c.to, got, c.outcome)
			}
			now := counts()
			for reason, n := range now {
				if grown := n > before[reason]; grown != (reason == c.reason) || reason == c.reason && c.outcome == "refused" && n != before[reason]+1 {
					t.Errorf("round %d, after a connection to %s: %d packets with reason %s after %d", round, c.to, n, reason, before[reason])
				}
			}
			before = now
		}
		rewrite(state)
		if now := counts(); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("after the rules were written again: %v, before %v", now, before)
		}
	}
}
