// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzAnnotations gives a Service any text as ranges, limits and fail-over. What is not understood is a Problem that names
// the Service and the annotation, the rest has its bounds, and the Service's port is served.
func FuzzAnnotations(f *testing.F) {
	f.Add("udp/10000-20000, tcp/3000-3100", "1000", "20", "50/s", "drop", "passthrough")
	f.Add("all", "10000", "1", "1/m", "refuse", "")
	f.Add("tcp/1-5,tcp/3-9", "0", "-1", "/", "Drop", " ")
	f.Add("sctp/65535-65535,udp/0-1,tcp/9-8,/", "10001", "+5", "5/s/m", "", "passthrough ")
	f.Fuzz(func(t *testing.T, ranges, most, perClient, rate, action, failover string) {
		s := New(Config{})
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "media", Annotations: map[string]string{
				AnnotationPortRanges: ranges, AnnotationMaxConnections: most, AnnotationMaxPerClient: perClient,
				AnnotationRatePerClient: rate, AnnotationLimitAction: action, AnnotationFailover: failover,
			}},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
		})
		u := s.Full()
		for _, p := range u.Problems {
			if p.Object != "Service ns/media" || p.Field == "" || p.Reason == "" {
				t.Errorf("problem %+v", p)
			}
		}
		for _, c := range u.Frontends {
			k, l := c.Key(), c.New.Limits
			if !k.IsRange() && (k.Port() != 80 || k.Protocol != TCP) || k.IsRange() && (k.Port() == 0 || k.Last < k.Port()) {
				t.Errorf("frontend %v", k)
			}
			if l.Connections > MostConnections || l.PerClient > MostConnections || l.Rate > MostRate || (l.Rate > 0) != (l.Unit == 's' || l.Unit == 'm') {
				t.Errorf("limits %+v", l)
			}
		}
		all, _ := parseRanges(ranges)
		if len(all) > mostRanges || len(u.Frontends) != len(all)+1 { // of two that overlap, one is served
			t.Errorf("%d frontends, %d ranges", len(u.Frontends), len(all))
		}
	})
}

// TestRangesText refuses texts that are no ranges.
func TestRangesText(t *testing.T) {
	for _, text := range []string{"/3000", "3000", "tcp/", "tcp/0", "tcp/2-1", "tcp/65536", "icmp/1", "tcp/1-2,tcp/2", "tcp/1-2,"} {
		if all, err := parseRanges(text); err == nil {
			t.Errorf("%q: %v", text, all)
		}
	}
	if all, err := parseRanges(" udp/10-20 ,TCP/5"); err != nil || len(all) != 2 || all[0].last != 20 || all[1].last != 5 {
		t.Errorf("%v, %v", all, err)
	}
}
