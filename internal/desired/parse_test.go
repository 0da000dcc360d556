// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParsePrefix(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.0/8":          "10.0.0.0/8",
		"10.1.2.3/8":          "10.0.0.0/8",
		"010.0.0.0/8":         "10.0.0.0/8",
		"::ffff:10.0.0.0/104": "10.0.0.0/8",
		"::ffff:10.0.0.0/95":  "",
		"fd00::1/64":          "fd00::/64",
		"10.0.0.0/33":         "",
		"nonsense":            "",
		"":                    "",
	} {
		p, ok := parsePrefix(text)
		if got := p.String(); ok != (want != "") || ok && got != want {
			t.Errorf("%q is %s, %t; want %q", text, got, ok, want)
		}
	}
}

func TestParseAddr(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "010.0.0.01": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "fd00::1": "fd00::1", "": "", "x": "",
	} {
		ip, ok := parseAddr(text)
		if ok != (want != "") || ok && ip.String() != want {
			t.Errorf("%q is %s, %t; want %q", text, ip, ok, want)
		}
	}
}

// TestUnreadableRanges checks that an invalid source range admits no client.
func TestUnreadableRanges(t *testing.T) {
	for _, c := range []struct {
		ranges []string
		open   bool
		want   int
	}{
		{nil, true, 0},
		{[]string{"10.0.0.0/33"}, false, 0},
		{[]string{"10.0.0.0/33", "192.0.2.0/24"}, false, 1},
		{[]string{"10.0.0.0/33", "0.0.0.0/0"}, true, 0},
		{[]string{"fd00::/8"}, true, 0},
		{[]string{"fd00::/8", "nonsense"}, false, 0},
	} {
		s := New(Config{})
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: corev1.ServiceSpec{
				ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Port: 80}}, LoadBalancerSourceRanges: c.ranges,
			},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}}},
		})
		found := false
		for _, f := range s.Change().Frontends {
			if f.New.Kind != LoadBalancerIP {
				continue
			}
			found = true
			if open := f.New.Sources == nil; open != c.open {
				t.Errorf("%q: open is %t", c.ranges, open)
			} else if !open && len(f.New.Sources.All()) != c.want {
				t.Errorf("%q admits %s", c.ranges, f.New.Sources.All())
			}
		}
		if !found {
			t.Errorf("%q: no frontend", c.ranges)
		}
	}
}
