// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/cluster"
	corev1 "k8s.io/api/core/v1"
)

// shape is a way to write Services as rules. In commands, IP stands for the address family:
// ip or ip6.
type shape struct {
	name       string
	load, list string         // commands that read rules, and that print them
	address    *regexp.Regexp // of Services and of endpoints, in what list prints
	// rules has templates: "all" writes some Services, the first time with what does not
	// depend on Services, and "replace" the replacement of an endpoint. Their data is a
	// script.
	rules           *template.Template
	service, target func(endpoint) string // names of chains
}

func newShape(o *Options) shape {
	if !o.iptables() {
		return nftShape
	}
	s := iptablesShape
	family := strings.Replace(o.Mode, "ip", "IP", 1)
	s.name, s.load, s.list = "list via "+o.Mode+"-restore", family+"-restore --noflush -w 60", family+"-save -t nat"
	return s
}

// command is one of the shape's commands with its arguments.
func command(f cluster.Family, text string) []string {
	return strings.Fields(strings.Replace(text, "IP", ipOf(f), 1))
}

// ipOf is a family in the notation of nft and iptables.
func ipOf(f cluster.Family) string {
	if f.Name == corev1.IPv6Protocol {
		return "ip6"
	}
	return "ip"
}

// script is what templates write, for one address family.
type script struct {
	cluster.Family
	cluster *cluster.Cluster
	shape   *shape
	some    []int // Services
	First   bool

	replaced cluster.Replacement
}

func (s *script) IP() string        { return ipOf(s.Family) }
func (s *script) AddrType() string  { return strings.ToLower(string(s.Family.Name)) + "_addr" }
func (s *script) Table() string     { return s.IP() + " slipstream-bench" }
func (s *script) Some() []endpoint  { return s.services(s.some) }
func (s *script) All() []endpoint   { return s.services(slices.Collect(s.cluster.Each())) }
func (s *script) Old() endpoint     { return endpoint{s, s.replaced.Service, s.replaced.Old, 0} }
func (s *script) New() endpoint     { return endpoint{s, s.replaced.Service, s.replaced.New, 0} }
func (s *script) Changed() endpoint { return endpoint{script: s, number: s.replaced.Service} }

func (s *script) services(numbers []int) (all []endpoint) {
	for _, n := range numbers {
		all = append(all, endpoint{script: s, number: n})
	}
	return all
}

// Comments says whether kube-proxy writes a comment about each endpoint: up to 1,000
// endpoints in the cluster (largeClusterEndpointsThreshold).
func (s *script) Comments() bool { return s.cluster.Services*s.cluster.Endpoints <= 1000 }

// endpoint is a Service, and one of its endpoints.
type endpoint struct {
	*script
	number, pod int
	left        int // endpoints of the Service after this one
}

func (e endpoint) Service() string      { return e.cluster.FullName(e.number) }
func (e endpoint) VIP() netip.Addr      { return e.ClusterIP(e.number) }
func (e endpoint) Chain() string        { return e.shape.service(e) }
func (e endpoint) Target() string       { return e.shape.target(e) }
func (e endpoint) Addr() netip.AddrPort { return e.PodAddr(e.pod) }

func (e endpoint) Endpoints() (all []endpoint) {
	pods := e.cluster.Pods(e.number)
	for i, pod := range pods {
		all = append(all, endpoint{e.script, e.number, pod, len(pods) - i - 1})
	}
	return all
}

// Probability is that of the choice of this endpoint among it and those after it; empty for
// the last.
func (e endpoint) Probability() string {
	if e.left == 0 {
		return ""
	}
	return fmt.Sprintf(" -m statistic --mode random --probability %.10f", 1/float64(e.left+1))
}

// hash keeps names apart that have to be cut short.
func hash(s string, length int) string {
	sum := sha256.Sum256([]byte(s))
	return base32.StdEncoding.EncodeToString(sum[:])[:length]
}

// nftShape is rules in the shape of kube-proxy's nftables mode (KEP-3866): a chain for
// each Service and one for each of its endpoints. A verdict map leads from ClusterIP,
// protocol and port to the Service's chain. That chooses an endpoint's chain, which marks
// hairpin traffic and translates the address.
var nftShape = shape{
	name: "chains via nft -f", load: "nft -f -", list: "nft list table IP slipstream-bench",
	address: regexp.MustCompile(`(?m)^\s*meta l4proto tcp dnat to (\S+)$|(\S+) \. tcp \. 80 comment "[^"]*" : goto service-`),
	service: func(e endpoint) string {
		name := e.cluster.NamespaceOf(e.number) + "/" + cluster.Name(e.number) + "/tcp/" + cluster.PortName
		return "service-" + hash(name, 8) + "-" + name
	},
	target: func(e endpoint) string {
		ip := strings.ReplaceAll(e.PodIP(e.pod).String(), ":", ".") // nft takes no colon in a name
		name := fmt.Sprintf("%s/%s/tcp/%s__%s/%d", e.cluster.NamespaceOf(e.number), cluster.Name(e.number), cluster.PortName, ip, cluster.TargetPort)
		return "endpoint-" + hash(name, 8) + "-" + name
	},
	rules: template.Must(template.New("").Parse(`
{{define "all"}}
{{- if .First}}table {{.Table}} {
	map service-ips { type {{.AddrType}} . inet_proto . inet_service : verdict; }
	set cluster-ips { type {{.AddrType}}; }
	chain mark-for-masquerade { meta mark set meta mark | 0x4000; }
	chain masquerading {
		meta mark & 0x4000 == 0 return
		meta mark set meta mark ^ 0x4000
		masquerade fully-random
	}
	chain services { {{.IP}} daddr . meta l4proto . th dport vmap @service-ips; }
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
	chain filter-forward { type filter hook forward priority -99; ct state new {{.IP}} daddr @cluster-ips reject; }
	chain filter-output { type filter hook output priority -99; ct state new {{.IP}} daddr @cluster-ips reject; }
}
{{end}}
{{- range .Some}}add chain {{.Table}} {{.Chain}}
{{range .Endpoints}}{{template "endpoint" .}}{{end}}{{template "service" .}}
{{- ""}}add element {{.Table}} service-ips { {{.VIP}} . tcp . 80 comment "{{.Service}}" : goto {{.Chain}} }
add element {{.Table}} cluster-ips { {{.VIP}} }
{{end}}{{end}}

{{define "replace"}}flush chain {{.Table}} {{.Changed.Chain}}
{{template "endpoint" .New}}{{template "service" .Changed}}flush chain {{.Table}} {{.Old.Target}}
delete chain {{.Table}} {{.Old.Target}}
{{end}}

{{define "delete"}}add table {{.Table}}
delete table {{.Table}}
{{end}}

{{define "endpoint"}}add chain {{.Table}} {{.Target}}
add rule {{.Table}} {{.Target}} {{.IP}} saddr {{.Addr.Addr}} jump mark-for-masquerade
add rule {{.Table}} {{.Target}} meta l4proto tcp dnat to {{.Addr}}
{{end}}

{{define "service"}}add rule {{.Table}} {{.Chain}} {{.IP}} daddr {{.VIP}} tcp dport 80 {{.IP}} saddr != {{.Pods}} jump mark-for-masquerade
add rule {{.Table}} {{.Chain}} numgen random mod {{len .Endpoints}} vmap { {{range $i, $e := .Endpoints}}{{if $i}}, {{end}}{{$i}} : goto {{$e.Target}}{{end}} }
{{end}}`)),
}

// iptablesShape is rules in the shape of kube-proxy's iptables mode: one list with a rule
// for each Service, a chain for each Service and one for each of its endpoints. The list
// leads to the Service's chain. That chooses an endpoint's chain, which marks hairpin
// traffic and translates the address. Chains have names as long as kube-proxy's. A
// replacement writes what kube-proxy does (KEP-3453): the whole list, and all of the Service.
var iptablesShape = shape{
	address: regexp.MustCompile(`(?m)^-A BASE-SEP-.* --to-destination (\S+)$|^-A BASE-SERVICES -d (\S+)/\d+ .* -j BASE-SVC-`),
	service: func(e endpoint) string { return "BASE-SVC-" + hash(e.Service(), 16) },
	target:  func(e endpoint) string { return "BASE-SEP-" + hash(fmt.Sprint(e.Service(), e.PodIP(e.pod)), 16) },
	rules: template.Must(template.New("").Parse(`
{{define "all"}}*nat
:BASE-SERVICES - [0:0]
:BASE-MARK-MASQ - [0:0]
:BASE-POSTROUTING - [0:0]
{{range .Some}}{{template "declare" .}}{{end -}}
-A PREROUTING -j BASE-SERVICES
-A OUTPUT -j BASE-SERVICES
-A POSTROUTING -j BASE-POSTROUTING
-A BASE-MARK-MASQ -j MARK --or-mark 0x4000
-A BASE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A BASE-POSTROUTING -j MARK --xor-mark 0x4000
-A BASE-POSTROUTING -j MASQUERADE --random-fully
{{template "list" .}}{{range .Some}}{{template "service" .}}{{end}}COMMIT
{{end}}

{{define "replace"}}*nat
:BASE-SERVICES - [0:0]
:{{.Old.Target}} - [0:0]
{{template "declare" .Changed}}{{template "list" .}}{{template "service" .Changed}}-X {{.Old.Target}}
COMMIT
{{end}}

{{define "list"}}{{range .All -}}
-A BASE-SERVICES -m comment --comment "{{.Service}} cluster IP" -m tcp -p tcp -d {{.VIP}} --dport 80 -j {{.Chain}}
{{end}}{{end}}

{{define "declare"}}:{{.Chain}} - [0:0]
{{range .Endpoints}}:{{.Target}} - [0:0]
{{end}}{{end}}

{{define "service" -}}
-A {{.Chain}} -m comment --comment "{{.Service}} cluster IP" -m tcp -p tcp -d {{.VIP}} --dport 80 ! -s {{.Pods}} -j BASE-MARK-MASQ
{{range .Endpoints -}}
-A {{.Chain}}{{if .Comments}} -m comment --comment "{{.Service}} -> {{.Addr}}"{{end}}{{.Probability}} -j {{.Target}}
{{end}}
{{- range .Endpoints}}
{{- $comment := ""}}{{if .Comments}}{{$comment = printf " -m comment --comment %q" .Service}}{{end -}}
-A {{.Target}}{{$comment}} -s {{.Addr.Addr}} -j BASE-MARK-MASQ
-A {{.Target}}{{$comment}} -m tcp -p tcp -j DNAT --to-destination {{.Addr}}
{{end}}{{end}}`)),
}
