// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// triggers are the times of changes in the cluster that the kernel does not have yet, from
// the annotation endpoints.kubernetes.io/last-change-trigger-time of EndpointSlices. Of the changes of
// one slice, the first counts.
type triggers struct {
	since   time.Time                        // earlier triggers are ignored: the proxy did not run yet
	waiting map[types.NamespacedName]trigger // by slice
}

type trigger struct {
	family desired.Family
	at     time.Time
}

// oldestTrigger is how old a trigger may be when its slice arrives. Whoever writes EndpointSlices can write any time.
const oldestTrigger = 10 * time.Minute

// set adds the trigger of a changed slice. A slice without the annotation, or with one that
// is not in RFC 3339, is ignored.
func (t *triggers) set(s *discoveryv1.EndpointSlice) {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	text, ok := s.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if _, waits := t.waiting[name]; !ok || waits {
		return
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !at.After(t.since) || time.Since(at) > oldestTrigger {
		return
	}
	f := desired.IPv4
	if s.AddressType == discoveryv1.AddressTypeIPv6 {
		f = desired.IPv6
	}
	t.waiting[name] = trigger{f, at}
}

// done records the latency of all triggers, when the kernel has their changes, and returns the
// longest one. Those of namespaces whose changes are postponed wait. A trigger in the future comes from a different clock
// and is ignored.
func (t *triggers) done(now time.Time, m *metrics.Metrics, postponed func(namespace string) bool) (longest time.Duration) {
	for name, w := range t.waiting {
		if postponed(name.Namespace) {
			continue
		}
		delete(t.waiting, name)
		if took := now.Sub(w.at); took >= 0 {
			m.Latency(w.family, took)
			longest = max(longest, took)
		}
	}
	return longest
}

func families(c *desired.Change) (out desired.Families) {
	for i := range c.Pools {
		out[c.Pools[i].Family] = true
	}
	for _, f := range c.Frontends {
		out[desired.FamilyOf(f.Key().Addr())] = true
	}
	for set := range desired.Programmed {
		for m := range c.Sets[set].All() {
			out[m.Family()] = true
		}
	}
	return out
}
