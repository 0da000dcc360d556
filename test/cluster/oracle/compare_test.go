// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// difference is a probe with two outcomes.
type difference struct {
	probe    Probe
	subjects [2]string
	outcomes [2]Outcome
}

func (d difference) String() string {
	return fmt.Sprintf("%v: %s: %v; %s: %v", d.probe, d.subjects[0], d.outcomes[0], d.subjects[1], d.outcomes[1])
}

// report fails the test with the differences, Service by Service.
func report(t *testing.T, c *Cluster, found []difference) {
	t.Helper()
	type service struct{ namespace, name string }
	var order []service
	lines := map[service][]string{}
	for _, d := range found {
		s := service{d.probe.Namespace, d.probe.Service}
		if lines[s] == nil {
			order = append(order, s)
		}
		lines[s] = append(lines[s], d.String())
	}
	for _, s := range order {
		t.Error(strings.Join(lines[s], "\n"))
		if svc := c.Named(s.namespace, s.name); svc != nil {
			t.Log("with\n" + describe(c, svc))
		}
	}
	t.Logf("settings: %v", c.Settings)
	t.Logf("once more: go test . -run Oracle -mode %s -clusters 1 -seed %d", modeOf(c).name, c.Seed)
}

// looks is how often a difference has to be seen to be believed.
const looks = 3

// compare returns the differences between the two observations of a cluster. Known differences
// are left out, and mentioned in the log.
func compare(t *testing.T, c *Cluster, both [2]*performance) []difference {
	t.Helper()
	begin := time.Now()
	probes := Plan(c)
	found := compareProbes(t, c, both, probes, looks, Fast)
	t.Logf("%d Services, %d slices, %d probes in %v", len(c.Services), len(c.Slices), len(probes), time.Since(begin).Round(time.Millisecond))
	return found
}

// compareProbes looks that many times, from the second time on at what differed only,
// but for what is known, and more carefully.
func compareProbes(t *testing.T, c *Cluster, both [2]*performance, probes []Probe, looks int, pace Pace) (found []difference) {
	t.Helper()
	var outcomes [2][]Outcome
	known := map[string]int{}
	for look := range looks {
		before, was := probes, outcomes
		parallel(t, func(i int) error {
			outcomes[i] = both[i].observer.Look(t.Context(), probes, pace)
			return nil
		})
		if look > 0 {
			mentionPassing(t, before, was, outcomes)
		}
		found = nil
		all, of := differing(probes, outcomes)
		probes, outcomes = nil, [2][]Outcome{}
		for i, p := range all {
			d := difference{probe: p}
			for s := range both {
				d.subjects[s], d.outcomes[s] = both[s].subject.name(), of[s][i]
			}
			if why := knownDifference(c, d); why != "" {
				known[why]++
				continue
			}
			found = append(found, d)
			probes = append(probes, p)
			outcomes[0], outcomes[1] = append(outcomes[0], of[0][i]), append(outcomes[1], of[1][i])
		}
		pace = Careful
		if c.Settings.Mode == IPVS { // a User Mode Linux kernel stands still for seconds
			pace.Timeout, pace.AtOnce = 5*time.Second, 16
		}
	}
	for why, n := range known {
		t.Logf("%d probes differ, as is known: %s", n, why)
	}
	return found
}

// differing keeps the probes with different outcomes.
func differing(probes []Probe, outcomes [2][]Outcome) (kept []Probe, of [2][]Outcome) {
	for i, p := range probes {
		if !outcomes[0][i].Equal(outcomes[1][i]) {
			kept = append(kept, p)
			of[0], of[1] = append(of[0], outcomes[0][i]), append(of[1], outcomes[1][i])
		}
	}
	return kept, of
}

// mentionPassing logs differences that another look did not confirm.
func mentionPassing(t *testing.T, probes []Probe, was, is [2][]Outcome) {
	t.Helper()
	const most = 3
	n := 0
	for i, p := range probes {
		if !is[0][i].Equal(is[1][i]) {
			continue
		}
		if n++; n <= most {
			t.Logf("passing: %v: first %v and %v, then both %v", p, was[0][i], was[1][i], is[0][i])
		}
	}
	if n > most {
		t.Logf("passing: %d more", n-most)
	}
}

// describe is a Service and its slices in YAML.
func describe(c *Cluster, svc *corev1.Service) string {
	parts := []string{asYAML(map[string]any{"metadata": short(svc.ObjectMeta), "spec": svc.Spec, "status": svc.Status})}
	for _, s := range c.SlicesOf(svc) {
		parts = append(parts, asYAML(map[string]any{"metadata": short(s.ObjectMeta), "addressType": s.AddressType, "ports": s.Ports, "endpoints": s.Endpoints}))
	}
	return strings.Join(parts, "---\n")
}

func short(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, Labels: m.Labels, Annotations: m.Annotations}
}

func asYAML(v any) string {
	b, err := yaml.Marshal(v)
	if err != nil {
		return err.Error() + "\n"
	}
	return string(b)
}
