// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRangesLeftOut checks that a range is reported and not served where the mode has none, and at an external IP
// where it has the port of an API server. The Service's port is served.
func TestRangesLeftOut(t *testing.T) {
	for _, c := range []struct {
		config Config
		ranges string
		want   string // of the problem; "" for none
	}{
		{Config{NoRanges: true}, "tcp/6000-7000", "this proxy mode does not have ranges"},
		{Config{APIServers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:6443")}}, "tcp/6000-7000", "is an API server"},
		{Config{APIServers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:6443")}}, "tcp/6444-7000", ""},
	} {
		s := New(c.config)
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "media", Annotations: map[string]string{AnnotationPortRanges: c.ranges}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", ExternalIPs: []string{"192.0.2.10"}, Ports: []corev1.ServicePort{{Port: 80}}},
		})
		problems := s.Full().Problems
		at := func(a string) bool {
			return s.FrontendAt(FrontendKey{AddrPort: netip.MustParseAddrPort(a), Protocol: TCP}) != nil
		}
		if got := at("192.0.2.10:6500"); got != (c.want == "") || !at("192.0.2.10:80") {
			t.Errorf("%+v: served: %v, problems: %v", c, got, problems)
		}
		if (len(problems) == 0) != (c.want == "") || len(problems) > 0 && !strings.Contains(problems[0].Error(), c.want) {
			t.Errorf("%+v: problems %v", c, problems)
		}
	}
}
