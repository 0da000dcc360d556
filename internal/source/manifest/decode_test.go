// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// service returns a manifest of a Service with the last octet of its address.
func service(name string, octet int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: %s
spec:
  clusterIP: 10.96.0.%d
  ports:
  - port: 80
`, name, octet)
}

const sliceYAML = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: shop
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
endpoints:
- addresses: [10.0.0.1]
ports:
- port: 8080
`

const nodeYAML = `apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDR: 10.0.0.0/24}
`

const serviceCIDRYAML = `apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: extra}
spec: {cidrs: [10.97.0.0/16, "fd00:97::/112"]}
`

func jsonService(name string, octet int) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": %q},
		"spec": {"clusterIP": "10.96.0.%d", "ports": [{"port": 80}]}}`, name, octet)
}

// names returns the decoded objects by document.
func names(c *Content) []string {
	var list []string
	for _, o := range c.Objects {
		item := ""
		if o.Item != "" {
			item = o.Item + " "
		}
		list = append(list, fmt.Sprintf("%d %s%s", o.Document, item, source.Name(o.Object)))
	}
	return list
}

func messages(c *Content) []string {
	var list []string
	for _, e := range c.Errors {
		list = append(list, e.Error())
	}
	return list
}

func TestDecode(t *testing.T) {
	for _, c := range []struct {
		name    string
		file    string // web.yaml unless set
		data    string
		objects []string
		errors  []string // whole messages
		ignored []string
	}{
		{name: "nothing", data: ""},
		{name: "comments", data: "# nothing\n---\n\n# here\n---\n"},
		{name: "null", data: "---\nnull\n---\n~\n"},
		{name: "one of each", data: service("web", 1) + "---\n" + sliceYAML + "---\n" + nodeYAML + "---\n" + serviceCIDRYAML,
			objects: []string{"1 Service default/web", "2 EndpointSlice shop/web-1", "3 Node node-1", "4 ServiceCIDR extra"}},
		{name: "empty documents do not count", data: "# head\n---\n---\n" + service("a", 1) + "---\n# none\n---\n" + service("b", 2) + "---\n",
			objects: []string{"1 Service default/a", "2 Service default/b"}},
		{name: "markers", data: "%YAML 1.1\n--- # a\n" + service("a", 1) + "...\n" + service("b", 2) + "--- \t\n" + service("c", 3) + "--- {apiVersion: v1, kind: Node, metadata: {name: d}}\n---",
			objects: []string{"1 Service default/a", "2 Service default/b", "3 Service default/c", "4 Node d"}},
		{name: "CRLF and BOM", data: "\ufeff" + strings.ReplaceAll(service("a", 1)+"---\n"+service("b", 2), "\n", "\r\n"),
			objects: []string{"1 Service default/a", "2 Service default/b"}},
		{name: "no marker in a block", data: strings.Replace(service("a", 1), "  name: a\n", "  name: a\n  annotations:\n    text: |\n      ---\n      ...\n      --- x\n", 1),
			objects: []string{"1 Service default/a"}},
		{name: "JSON", file: "web.json", data: jsonService("a", 1), objects: []string{"1 Service default/a"}},
		{name: "JSON one after the other", data: jsonService("a", 1) + jsonService("b", 2) + "\n\n" + jsonService("c", 3) + "\n",
			objects: []string{"1 Service default/a", "2 Service default/b", "3 Service default/c"}},
		{name: "JSON and YAML", data: jsonService("a", 1) + "\n---\n" + service("b", 2) + "---\n" + jsonService("c", 3) + " # done\n",
			objects: []string{"1 Service default/a", "2 Service default/b", "3 Service default/c"}},
		{name: "flow YAML", data: "{apiVersion: v1, kind: Node, metadata: {name: a}} # yes\n", objects: []string{"1 Node a"}},
		{name: "List", data: "apiVersion: v1\nkind: List\nmetadata: {resourceVersion: \"\"}\nitems:\n" + indent(service("a", 1)) + indent(sliceYAML),
			objects: []string{"1 items[0] Service default/a", "1 items[1] EndpointSlice shop/web-1"}},
		{name: "ServiceList", data: "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: a}\n  spec: {clusterIP: None}\n" + indent(service("b", 1)),
			objects: []string{"1 items[0] Service default/a", "1 items[1] Service default/b"}},
		{name: "EndpointSliceList and NodeList", data: "apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems:\n" + indent(sliceYAML) + "---\napiVersion: v1\nkind: NodeList\nitems: [{metadata: {name: a}}]\n",
			objects: []string{"1 items[0] EndpointSlice shop/web-1", "2 items[0] Node a"}},
		{name: "Namespaces and Pods", data: "{apiVersion: v1, kind: Namespace, metadata: {name: voip}}\n---\n{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: voip}, status: {podIPs: [{ip: 10.0.0.1}]}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: a.b}}\n",
			objects: []string{"1 Namespace voip"}, ignored: []string{"Pod voip/a"},
			errors: []string{`web.yaml: document 3: Namespace a.b: metadata.name: Invalid value: "a.b": must not contain dots`}},
		{name: "ServiceCIDRList", data: "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDRList\nitems: [{metadata: {name: a}, spec: {cidrs: [10.97.0.0/16]}}]\n",
			objects: []string{"1 items[0] ServiceCIDR a"}},
		{name: "List of Lists", data: `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"List","items":[` + jsonService("a", 1) + `]}]}`,
			objects: []string{"1 items[0].items[0] Service default/a"}},
		{name: "empty List", data: "apiVersion: v1\nkind: List\nitems: []\n"},
		{name: "managed fields and status", data: strings.Replace(service("a", 1), "  name: a\n", "  name: a\n  creationTimestamp: \"2026-01-02T03:04:05Z\"\n  uid: x\n  managedFields:\n  - {manager: kubectl, operation: Update, apiVersion: v1, fieldsType: FieldsV1, fieldsV1: {\"f:spec\": {}}}\n", 1) + "status: {loadBalancer: {}}\n",
			objects: []string{"1 Service default/a"}},

		{name: "other kinds", data: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {anything: goes}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: shop}\n---\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: k}\n---\n" + service("a", 1),
			objects: []string{"4 Service default/a"}, ignored: []string{"Deployment web", "ConfigMap shop/c", "Service default/k"}},

		{name: "unknown field", data: service("a", 1) + "  selektor: {app: web}\n" + "---\n" + service("b", 2),
			objects: []string{"2 Service default/b"},
			errors:  []string{`web.yaml: document 1: Service default/a: unknown field "spec.selektor"`}},
		{name: "unknown fields below", data: strings.Replace(service("a", 1), "port: 80", "port: 80\n    prot: TCP\n    Name: x", 1),
			errors: []string{`web.yaml: document 1: Service default/a: unknown field "spec.ports[0].Name"; unknown field "spec.ports[0].prot"`}},
		{name: "wrong case", data: strings.Replace(service("a", 1), "kind:", "Kind:", 1),
			errors: []string{`web.yaml: document 1: Service default/a: unknown field "Kind"`}},
		{name: "duplicate field, YAML", data: "# one\n" + service("a", 1) + "spec: {}\n",
			errors: []string{`web.yaml: document 1: Service default/a: YAML: line 10: key "spec" already set in map`}},
		{name: "duplicate field, JSON", data: strings.Replace(jsonService("a", 1), `"port": 80`, `"port": 80, "port": 81`, 1),
			errors: []string{`web.yaml: document 1: Service default/a: duplicate field "spec.ports[0].port"`}},
		{name: "wrong type", data: strings.Replace(service("a", 1), "port: 80", "port: http", 1),
			errors: []string{`web.yaml: document 1: Service default/a: spec.ports.port: is of type string, must be int32`}},
		{name: "name is a number", data: strings.Replace(service("a", 1), "name: a", "name: 12", 1),
			errors: []string{`web.yaml: document 1: Service: metadata.name: is of type number, must be string`}},
		{name: "YAML syntax, later document", data: service("a", 1) + "---\n" + service("b", 2) + "\tx: 1\n---\n" + service("c", 3),
			objects: []string{"1 Service default/a", "3 Service default/c"},
			errors:  []string{`web.yaml: document 2: YAML: line 18: found a tab character that violates indentation`}},
		{name: "JSON syntax, later document", data: jsonService("a", 1) + "\n{\"apiVersion\": \"v1\",\n  \"kind\": }",
			objects: []string{"1 Service default/a"},
			errors:  []string{`web.yaml: document 2: kind: Required value`}},
		{name: "JSON cut off", data: jsonService("a", 1) + "\n" + jsonService("b", 2)[:40],
			objects: []string{"1 Service default/a"},
			errors:  []string{`web.yaml: document 2: YAML: line 3: did not find expected node content`}},
		{name: "something after a flow mapping", data: "{apiVersion: v1, kind: Node, metadata: {name: a}}\n{apiVersion: v1, kind: Node, metadata: {name: b}}\n",
			errors: []string{`web.yaml: document 1: YAML: there is text after the end of the document that starts on line 1 (is a line with --- missing?)`}},
		{name: "not UTF-8", data: service("a", 1) + "# \xff\n", errors: []string{"web.yaml: document 1: YAML: invalid leading UTF-8 octet"}},
		{name: "not an object", data: "- 1\n---\nhello\n---\n3\n", errors: []string{
			"web.yaml: document 1: is not an object: a manifest starts with apiVersion and kind",
			"web.yaml: document 2: is not an object: a manifest starts with apiVersion and kind",
			"web.yaml: document 3: is not an object: a manifest starts with apiVersion and kind"}},
		{name: "no kind", data: "apiVersion: v1\nmetadata: {name: a}\n", errors: []string{"web.yaml: document 1: a: kind: Required value"}},
		{name: "no apiVersion", data: "kind: Service\nmetadata: {name: a}\n", errors: []string{"web.yaml: document 1: Service default/a: apiVersion: Required value"}},
		{name: "bad apiVersion", data: "kind: Service\napiVersion: a/b/c\n", errors: []string{`web.yaml: document 1: Service: apiVersion: Unsupported value: "a/b/c": supported values: "v1"`}},
		{name: "namespace is a YAML boolean", data: strings.Replace(service("a", 1), "name: a", "name: a\n  namespace: n", 1),
			errors: []string{`web.yaml: document 1: Service default/a: metadata.namespace: is of type bool, must be string`}},
		{name: "kind is a number", data: "kind: 1\napiVersion: v1\n", errors: []string{"web.yaml: document 1: kind: is of type number, must be string"}},
		{name: "unknown versions", data: "{apiVersion: discovery.k8s.io/v1beta1, kind: EndpointSlice, metadata: {name: a}}\n---\n{apiVersion: v2, kind: Service}\n---\n{apiVersion: v1, kind: EndpointSlice}\n---\n{apiVersion: v1beta3, kind: List}\n---\n{apiVersion: networking.k8s.io/v1beta1, kind: ServiceCIDR, metadata: {name: a}}\n---\n{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a}}\n",
			ignored: []string{"Ingress a"},
			errors: []string{
				`web.yaml: document 1: EndpointSlice default/a: apiVersion: Unsupported value: "discovery.k8s.io/v1beta1": supported values: "discovery.k8s.io/v1"`,
				`web.yaml: document 2: Service: apiVersion: Unsupported value: "v2": supported values: "v1"`,
				`web.yaml: document 3: EndpointSlice: apiVersion: Unsupported value: "v1": supported values: "discovery.k8s.io/v1"`,
				`web.yaml: document 4: List: apiVersion: Unsupported value: "v1beta3": supported values: "v1"`,
				`web.yaml: document 5: ServiceCIDR a: apiVersion: Unsupported value: "networking.k8s.io/v1beta1": supported values: "networking.k8s.io/v1"`}},

		{name: "invalid", data: service("a", 1) + "---\n" + strings.Replace(service("web", 2), "80", "70000", 1),
			objects: []string{"1 Service default/a"},
			errors:  []string{"web.yaml: document 2: Service default/web: spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive"}},
		{name: "no clusterIP", data: "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {ports: [{port: 80}]}\n",
			errors: []string{"web.yaml: document 1: Service shop/web: spec.clusterIP: Required value: a directory of manifests has no API server to allocate one: give an address, or None for a headless Service"}},
		{name: "ServiceCIDR in a namespace", data: strings.Replace(serviceCIDRYAML, "{name: extra}", "{name: extra, namespace: shop}", 1),
			errors: []string{"web.yaml: document 1: ServiceCIDR shop/extra: metadata.namespace: Forbidden: not allowed on this type"}},
		{name: "managed fields are checked before they are dropped", data: strings.Replace(service("a", 1), "  name: a\n", "  name: a\n  managedFields: [{operation: Steal}]\n", 1),
			errors: []string{`web.yaml: document 1: Service default/a: metadata.managedFields[0].operation: Unsupported value: "Steal": supported values: "Apply", "Update"`}},
		{name: "twice", data: service("a", 1) + "---\n" + service("b", 2) + "---\n" + service("a", 3),
			objects: []string{"1 Service default/a", "2 Service default/b"},
			errors:  []string{"web.yaml: document 3: Service default/a: document 1 of this file already has it: the first one counts"}},

		{name: "List with a bad item", data: "apiVersion: v1\nkind: List\nitems:\n- 1\n" + indent(service("a", 1)) + "- {apiVersion: v1, kind: Node, metadata: {name: A}}\n",
			objects: []string{"1 items[1] Service default/a"},
			errors: []string{
				"web.yaml: document 1: items[0]: is not an object: a manifest starts with apiVersion and kind",
				`web.yaml: document 1: items[2]: Node A: metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`}},
		{name: "List, misspelt", data: "apiVersion: v1\nkind: List\nitem: []\n", errors: []string{"web.yaml: document 1: List: unknown field \"item\""}},
		{name: "List, items twice", data: `{"apiVersion":"v1","kind":"List","items":[],"items":[]}`, errors: []string{"web.yaml: document 1: List: duplicate field \"items\""}},
		{name: "List, items not a list", data: `{"apiVersion":"v1","kind":"List","items":{}}`, errors: []string{"web.yaml: document 1: List: items: is of type object, must be a list"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := c.file
			if file == "" {
				file = "web.yaml"
			}
			got := Decode(file, []byte(c.data))
			if n := names(got); !slices.Equal(n, c.objects) {
				t.Errorf("objects %q, want %q", n, c.objects)
			}
			if m := messages(got); !slices.Equal(m, c.errors) {
				t.Errorf("errors:\n%s\nwant:\n%s", strings.Join(m, "\n"), strings.Join(c.errors, "\n"))
			}
			if !slices.Equal(got.Ignored, c.ignored) {
				t.Errorf("ignored %q, want %q", got.Ignored, c.ignored)
			}
		})
	}
}

// indent makes a manifest an item of a YAML list.
func indent(s string) string {
	return "- " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n  ") + "\n"
}

func TestDecodeErrorFields(t *testing.T) {
	data := "# c\n" + service("a", 1) + "---\n\n" + strings.Replace(service("b", 2), "port: 80", "port: 0\n    nodePort: 70000", 1)
	c := Decode("web.yaml", []byte(data))
	if len(c.Errors) != 1 {
		t.Fatalf("errors %q, want one", messages(c))
	}
	e := c.Errors[0]
	if e.File != "web.yaml" || e.Document != 2 || e.Object != "Service default/b" || len(e.Errs) != 2 {
		t.Errorf("got %+v", e)
	}
}

func TestDecodeWarnings(t *testing.T) {
	c := Decode("web.yaml", []byte(strings.Replace(sliceYAML, "  labels: {kubernetes.io/service-name: web}\n", "", 1)))
	if len(c.Objects) != 1 || len(c.Errors) != 0 {
		t.Fatalf("objects %q errors %q", names(c), messages(c))
	}
	want := "web.yaml: document 1: EndpointSlice shop/web-1: metadata.labels: without the label kubernetes.io/service-name the slice belongs to no Service"
	if len(c.Warnings) != 1 || c.Warnings[0] != want {
		t.Errorf("warnings %q, want %q", c.Warnings, want)
	}
}

func TestErrorIsOneShortLine(t *testing.T) {
	e := &Error{File: "f", Object: "Service a/b"}
	for range 1000 {
		e.Errs = append(e.Errs, errors.New("bad\nworse "+strings.Repeat("é", 1000)))
	}
	got := e.Error()
	if strings.Contains(got, "\n") || len(got) > 2000 || !strings.HasSuffix(got, "; and 995 more") || strings.ToValidUTF8(got, "") != got {
		t.Errorf("got %d bytes: %q", len(got), got)
	}
}

// TestDecodeLarge reads a file that is larger than all buffers, with one document of more than
// 5 MB, where some readers stop.
func TestDecodeLarge(t *testing.T) {
	var b strings.Builder
	const n = 3000
	for i := range n {
		fmt.Fprintf(&b, "---\n%s", strings.Replace(service(fmt.Sprintf("s%d", i), 1), "10.96.0.1", fmt.Sprintf("10.96.%d.%d", i/250, i%250+1), 1))
	}
	b.WriteString("---\n{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [")
	long := strings.Repeat("x", 20000)
	for i := range 300 {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n%d","annotations":{"a":%q}}}`, i, long)
	}
	b.WriteString("]}")
	c := Decode("web.yaml", []byte(b.String()))
	if len(c.Objects) != n+300 || len(c.Errors) != 0 {
		t.Fatalf("%d objects, errors %q", len(c.Objects), messages(c))
	}
	for i, o := range c.Objects[:n] { // in order, though read in parallel
		if want := fmt.Sprintf("s%d", i); o.GetName() != want || o.Document != i+1 {
			t.Fatalf("object %d is %s of document %d", i, o.GetName(), o.Document)
		}
	}
}

func TestDefaults(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "default", Name: "a"}
	serviceType := metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	for _, c := range []struct {
		name string
		data string
		want source.Object
	}{
		{"ClusterIP", `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}`,
			&corev1.Service{TypeMeta: serviceType, ObjectMeta: meta, Spec: corev1.ServiceSpec{
				Type:      "ClusterIP",
				ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
				Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}},
			}}},
		{"dual stack from clusterIPs", `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop}, spec: {clusterIPs: ["fd00::1", 10.96.0.1], ports: [{port: 80, targetPort: http, protocol: UDP}], sessionAffinity: ClientIP}}`,
			&corev1.Service{TypeMeta: serviceType, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a"}, Spec: corev1.ServiceSpec{
				Type:      "ClusterIP",
				ClusterIP: "fd00::1", ClusterIPs: []string{"fd00::1", "10.96.0.1"},
				SessionAffinity: "ClientIP",
				Ports:           []corev1.ServicePort{{Port: 80, Protocol: "UDP", TargetPort: intstr.FromString("http")}},
			}}},
		{"headless", `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: None, }}`,
			&corev1.Service{TypeMeta: serviceType, ObjectMeta: meta, Spec: corev1.ServiceSpec{
				Type:      "ClusterIP",
				ClusterIP: "None", ClusterIPs: []string{"None"},
			}}},
		{"LoadBalancer", `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: LoadBalancer, clusterIP: 10.96.0.1, ports: [{port: 80}]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {hostname: a}]}}}`,
			&corev1.Service{TypeMeta: serviceType, ObjectMeta: meta, Spec: corev1.ServiceSpec{
				Type:      "LoadBalancer",
				ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
				Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}},
			}, Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
				{IP: "192.0.2.1"}, {Hostname: "a"}}}}}},
		{"externalIPs", `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.96.0.1, externalIPs: [192.0.2.1], internalTrafficPolicy: Local, ports: [{port: 80}]}}`,
			&corev1.Service{TypeMeta: serviceType, ObjectMeta: meta, Spec: corev1.ServiceSpec{
				Type:      "ClusterIP",
				ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
				ExternalIPs:           []string{"192.0.2.1"},
				InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal),
				Ports:                 []corev1.ServicePort{{Port: 80, Protocol: "TCP"}},
			}}},
		{"ExternalName", `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: ExternalName, externalName: example.com}}`,
			&corev1.Service{TypeMeta: serviceType, ObjectMeta: meta, Spec: corev1.ServiceSpec{
				Type: "ExternalName", ExternalName: "example.com",
			}}},
		{"EndpointSlice", `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a}, addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}], ports: [{}, {name: b, protocol: UDP, port: 53}]}`,
			&discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: meta,
				AddressType: "IPv4",
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
				Ports: []discoveryv1.EndpointPort{
					{},
					{Name: new("b"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(53))}},
			}},
		{"ServiceCIDR", `{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: a}, spec: {cidrs: [10.97.0.0/16]}}`,
			&networkingv1.ServiceCIDR{TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}, ObjectMeta: metav1.ObjectMeta{Name: "a"},
				Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.97.0.0/16"}}}},
		{"Node", `{apiVersion: v1, kind: Node, metadata: {name: a}, spec: {podCIDRs: [10.0.0.0/24]}}`,
			&corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "a"},
				Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Decode("a.yaml", []byte(c.data))
			if len(got.Objects) != 1 {
				t.Fatalf("%d objects, errors %q", len(got.Objects), messages(got))
			}
			if o := got.Objects[0].Object; !equality.Semantic.DeepEqual(o, c.want) {
				a, _ := json.MarshalIndent(o, "", " ")
				b, _ := json.MarshalIndent(c.want, "", " ")
				t.Errorf("got %s\nwant %s", a, b)
			}
		})
	}
}
