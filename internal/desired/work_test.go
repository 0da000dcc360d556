// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Workloads take a size, by name.
var Workloads = map[string]func(n int){
	"ports of a Service": func(n int) {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}}
		for i := range n {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
		}
		s := New(Config{})
		for _, annotation := range []string{"x", "y"} {
			svc.Annotations = map[string]string{annotation: ""}
			s.SetService(svc)
			s.Change()
		}
	},
	"ports of a slice": func(n int) {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "a", Name: "b", Labels: map[string]string{discoveryv1.LabelServiceName: "b"}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for i := range n {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: ptr.To(fmt.Sprint("p", i)), Port: ptr.To(int32(i + 1))})
		}
		s := New(Config{})
		s.SetService(svc)
		for _, ip := range []string{"10.244.0.1", "10.244.0.2"} {
			slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{ip}}}
			s.SetEndpointSlice(slice)
			s.Change()
		}
	},
	"slices of a Service": func(n int) {
		s := New(Config{})
		s.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}}})
		for i := range n {
			addSlice(s, i, fmt.Sprintf("10.244.%d.%d", i>>8, i&255))
			s.Change()
		}
		for i := range n {
			s.DeleteEndpointSlice("a", fmt.Sprint(i))
			s.Change()
		}
	},
	"slices of a Service beside an endpoint that does not answer": func(n int) {
		s := New(Config{})
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", Annotations: map[string]string{AnnotationOutliers: EjectOutliers}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
		})
		for _, namespace := range []string{"a", "other"} {
			s.Silent(namespace, Target{TCP, NewBackend(netip.MustParseAddrPort("192.0.2.1:80"))}, true)
		}
		for i := range n {
			addSlice(s, i, fmt.Sprintf("10.244.%d.%d", i>>8, i&255))
			s.Change()
		}
	},
	"slices with one endpoint": func(n int) {
		s := New(Config{})
		s.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}}})
		for i := range n {
			addSlice(s, i, "10.244.0.1")
			s.Change()
		}
	},
	"slices of a Service with a health check": func(n int) {
		s := New(Config{NodeName: "n1"})
		s.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}, Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}},
			Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 30000,
		}})
		for i := range n {
			addSlice(s, i, fmt.Sprintf("10.244.%d.%d", i>>8, i&255))
			s.Change()
		}
	},
	"zones of a slice": func(n int) {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "a", Name: "b", Labels: map[string]string{discoveryv1.LabelServiceName: "b"}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for i := range n {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.244.%d.%d", i>>8, i&255)}, Zone: ptr.To(fmt.Sprint("z", i)),
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: fmt.Sprint("h", i)}}},
			})
		}
		New(Config{}).SetEndpointSlice(slice)
	},
	"Services beyond the limits": func(n int) {
		s := New(Config{NamespaceElements: 7 * n / 2}) // of which each needs 2, 3 or 4
		s.elements.free = 0
		for i := range n {
			spec := corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.%d.%d", i>>8, i&255), Ports: []corev1.ServicePort{{Port: 80}}}
			for j := range 2 + i%3 {
				spec.ExternalIPs = append(spec.ExternalIPs, fmt.Sprintf("192.0.%d.%d", 2+j, i&255))
			}
			s.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("s", i)}, Spec: spec})
			s.Change()
		}
	},
	"Services and Nodes": func(n int) {
		s := New(Config{NodeName: "n1", IPVS: true})
		for i := range n {
			s.SetService(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("s", i)},
				Spec: corev1.ServiceSpec{
					ClusterIP: fmt.Sprintf("10.96.%d.%d", i>>8, i&255), ExternalIPs: []string{fmt.Sprintf("198.18.%d.%d", i>>8, i&255)},
					Ports: []corev1.ServicePort{{Port: 80}},
				},
			})
		}
		for i := range n {
			s.SetNode(&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("other", i)},
				Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.1.%d.%d", i>>8, i&255)}}},
			})
		}
		for i := range n {
			s.DeleteNode(fmt.Sprint("other", i))
		}
		s.Change()
	},
	"ranges of one Service beside many Services": func(n int) {
		s := New(Config{NodeName: "n1"})
		for i := range n {
			s.SetService(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("s", i)},
				Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.%d.%d", i>>8, i&255), Ports: []corev1.ServicePort{{Port: 80}}},
			})
		}
		node := func(name string, i int) {
			s.SetNode(&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"heartbeat": fmt.Sprint(i)}},
				Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.0.1"}, {Type: corev1.NodeInternalIP, Address: "10.1.0.1"}}},
			})
			s.Change()
		}
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "all", Annotations: map[string]string{AnnotationPortRanges: "all"}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.97.0.1", ExternalIPs: []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"}},
		}
		for i := range n / 10 {
			svc.Labels = map[string]string{"l": fmt.Sprint(i)}
			s.SetService(svc)
			s.Change()
			node("n1", i)
			node(fmt.Sprint("other", i), i)
			s.SetNodeAddresses([]netip.Addr{netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})})
			s.Change()
		}
	},
	"ports and ranges at one address": func(n int) {
		s := New(Config{})
		for i := range n {
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("s", i)},
				Spec: corev1.ServiceSpec{
					ClusterIP: fmt.Sprintf("10.96.%d.%d", i>>8, i&255), ExternalIPs: []string{"192.0.2.1"}, Ports: []corev1.ServicePort{{Port: int32(i*60 + 1)}},
				},
			}
			if i%2 == 0 {
				svc.Annotations = map[string]string{AnnotationPortRanges: fmt.Sprintf("tcp/%d-%d,udp/%[1]d-%[2]d", i*60+1, i*60+90)}
			}
			s.SetService(svc)
		}
		s.Change()
	},
	"ranges at one address, one after the other": func(n int) {
		s := New(Config{})
		s.ranges = newBudget(64, 0, namespacesRanges) // instead of MaxRanges, which n does not reach
		for i := range n {
			s.SetService(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "a", Name: fmt.Sprint("s", i), Annotations: map[string]string{AnnotationPortRanges: fmt.Sprintf("tcp/%d-%d", i*60+1, i*60+90)},
				},
				Spec: corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.%d.%d", i>>8, i&255), ExternalIPs: []string{"192.0.2.1"}, Ports: []corev1.ServicePort{{Port: 80}}},
			})
			s.Change()
		}
	},
	"many ranges": func(n int) {
		var all []string
		for i := range 10 * n {
			all = append(all, fmt.Sprint("tcp/", i+1))
		}
		s := New(Config{})
		for i := range 3 {
			s.SetService(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", Annotations: map[string]string{AnnotationPortRanges: strings.Join(all, ",")}},
				Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprint("10.96.0.", i+1)},
			})
		}
	},
	"external IPs of a Service of UDP": func(n int) {
		s, svc := New(Config{}), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolUDP}}},
		}
		for i := range n {
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, fmt.Sprintf("198.18.%d.%d", i>>8, i&255))
		}
		s.SetService(svc)
		for i := range 4 {
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "a", Name: "b", Labels: map[string]string{discoveryv1.LabelServiceName: "b"}},
				AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](80), Protocol: ptr.To(corev1.ProtocolUDP)}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprint("10.244.0.", i+1)}}},
			}
			s.SetEndpointSlice(slice)
			s.Change()
		}
	},
	"problems of a Service": func(n int) {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}}
		s := New(Config{})
		for range 2 {
			for range n / 2 {
				svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, "255.255.255.255")
			}
			s.SetService(svc)
		}
	},
	"Services with one external IP": func(n int) {
		s := New(Config{})
		for i := range n {
			s.SetService(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("s", n-i)},
				Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.%d.%d", i>>8, i&255), ExternalIPs: []string{"192.0.2.1"}, Ports: []corev1.ServicePort{{Port: 80}}},
			})
		}
		s.Change()
		for i := range n {
			s.DeleteService("a", fmt.Sprint("s", i+1))
		}
		s.Change()
	},
}

// addSlice adds a slice of Service a/b.
func addSlice(s *State, i int, ip string) {
	s.SetEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint(i), Labels: map[string]string{discoveryv1.LabelServiceName: "b"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](80)}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}, NodeName: ptr.To("n1")}},
	})
}

// TestWorkGrowsWithSize counts the statements that the package, and dataplane, execute: for twice as much, about twice as
// many. What one tenant may write must not stop the only loop. To count, it runs itself with coverage.
func TestWorkGrowsWithSize(t *testing.T) {
	const name, size = "SLIPSTREAM_WORKLOAD", "SLIPSTREAM_WORKLOAD_SIZE"
	if do := Workloads[os.Getenv(name)]; do != nil {
		n, _ := strconv.Atoi(os.Getenv(size))
		do(n)
		return
	}
	profile, binary := filepath.Join(t.TempDir(), "profile"), filepath.Join(t.TempDir(), "test")
	if out, err := exec.Command("go", "test", "-c", "-covermode=count", "-coverpkg=.,../dataplane", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for workload := range Workloads {
		statements := func(n int) (sum int) {
			cmd := exec.Command(binary, "-test.run=^"+t.Name()+"$", "-test.coverprofile="+profile)
			cmd.Env = append(os.Environ(), name+"="+workload, size+"="+strconv.Itoa(n))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			text, err := os.ReadFile(profile)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				words := strings.Fields(line) // place, statements, executions
				if len(words) == 3 {
					count, _ := strconv.Atoi(words[2])
					sum += count
				}
			}
			return sum
		}
		if one, two := statements(500), statements(1000); two > 3*one || one < 1000 {
			t.Errorf("%s: %d statements for 500, %d for 1,000", workload, one, two)
		}
	}
}
