// SPDX-License-Identifier: Apache-2.0

// Package migrate says what changes on a node when Slipstream takes the place of kube-proxy: for
// the node and for each Service, in each mode of Slipstream. It reads and changes nothing itself.
//
// What it knows of kube-proxy is the behaviour of v1.37.1 (docs/services.md and docs/configuration.md
// say where Slipstream differs).
package migrate

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/firewall"
)

// Severity is what a finding means for users.
type Severity string

// The severities.
const (
	Same    Severity = "same"    // nothing changes, because the configuration says so
	Differs Severity = "differs" // something behaves differently
	Stops   Severity = "stops"   // something stops working
	Action  Severity = "action"  // an administrator has to look at something
)

// Finding is one thing that changes, or that the configuration keeps as it is.
type Finding struct {
	Severity Severity `json:"severity"`
	Case     string   `json:"case"`         // a stable name
	Text     string   `json:"text"`         // what changes
	Do       string   `json:"do,omitempty"` // what to do about it
}

// Service has the findings of one Service.
type Service struct {
	Name     string    `json:"name"` // with namespace
	Findings []Finding `json:"findings"`
}

// Mode has the findings of one mode of Slipstream.
type Mode struct {
	Mode          string    `json:"mode"`
	Possible      bool      `json:"possible"`      // on this node
	Node          []Finding `json:"node"`          // of the whole node
	Services      []Service `json:"services"`      // those that change, by name
	Unchanged     int       `json:"unchanged"`     // number of the other Services
	Configuration string    `json:"configuration"` // for Slipstream, as YAML
}

// Report is the comparison of kube-proxy with modes of Slipstream.
type Report struct {
	From        string `json:"from"`                  // kube-proxy's mode
	Recommended string `json:"recommended,omitempty"` // mode; none if no mode is possible
	Modes       []Mode `json:"modes"`
}

// Kernel is what the node lacks for a mode.
type Kernel struct {
	Err         error // why the mode is not possible
	Missing     []dataplane.Missing
	NoAlgorithm error // why the configured algorithm is not possible
}

// Input is what a comparison depends on, besides the configuration.
type Input struct {
	Services  []*corev1.Service
	Node      *corev1.Node     // nil if it is not known
	Addresses []netip.Addr     // of the node's interfaces, except kube-ipvs0
	Listeners []netip.AddrPort // addresses to which programs of the node have bound sockets

	Skips []firewall.Skip // rules of the node that packets on the fast path can skip

	// Probe says what the node lacks for a configuration. nil: nothing.
	Probe func(*config.Config) (Kernel, error)
}

// Compare compares kube-proxy with each of the modes.
func Compare(c *Config, in Input, modes []string) (*Report, error) {
	services := servicesOf(c, in.Services)
	r := &Report{From: c.From}
	for _, mode := range modes {
		m := &comparison{Config: c, Input: in, services: services, to: mode, from: config.TraitsOf(c.From), into: config.TraitsOf(mode), family: map[desired.Family]string{}}
		text, err := c.For(mode, services)
		if err == nil {
			m.after, _, err = config.Decode([]byte(text))
		}
		if err == nil && in.Probe != nil {
			m.kernel, err = in.Probe(m.after)
		}
		if err != nil {
			return nil, err
		}
		out := Mode{Mode: mode, Possible: m.possible(), Configuration: text, Services: []Service{}, Node: []Finding{}}
		if out.Possible {
			m.node()
		}
		out.Node = append(out.Node, m.findings...)
		for _, s := range services {
			m.findings = nil
			if out.Possible {
				m.service(s)
			}
			if len(m.findings) == 0 {
				out.Unchanged++
				continue
			}
			out.Services = append(out.Services, Service{s.Namespace + "/" + s.Name, m.findings})
		}
		r.Modes = append(r.Modes, out)
	}
	for _, mode := range slices.Insert(config.Modes(), 1, c.From) {
		if i := slices.IndexFunc(r.Modes, func(m Mode) bool { return m.Mode == mode && m.Possible }); i >= 0 {
			r.Recommended = mode
			break
		}
	}
	return r, nil
}

// Changes reports whether anything changes with the recommended mode.
func (r *Report) Changes() bool {
	m := r.mode()
	return m == nil || len(m.Services) > 0 || slices.ContainsFunc(m.Node, func(f Finding) bool { return f.Severity != Same })
}

// mode returns the recommended mode, or nil.
func (r *Report) mode() *Mode {
	for i := range r.Modes {
		if r.Modes[i].Mode == r.Recommended {
			return &r.Modes[i]
		}
	}
	return nil
}

// comparison is the comparison with one mode.
type comparison struct {
	*Config
	Input
	services []*service
	to       string
	from     config.Traits  // of kube-proxy's mode
	into     config.Traits  // of that mode
	after    *config.Config // in that mode
	kernel   Kernel
	family   map[desired.Family]string // families that the node cannot serve, with the reason
	findings []Finding
}

func (m *comparison) add(s Severity, name, text, do string) {
	m.findings = append(m.findings, Finding{s, name, text, do})
}

// possible finds out what the node lacks for the mode.
func (m *comparison) possible() bool {
	k := m.kernel
	if k.Err != nil {
		m.add(Stops, "kernel", fmt.Sprintf("This node cannot run the mode %s: %v.", m.to, k.Err), "")
		return false
	}
	for _, what := range k.Missing {
		m.family[what.Family] = what.String()
	}
	primary, _ := config.ParseAddr(m.KubeProxy.BindAddress)
	if primary.IsUnspecified() && m.Node != nil {
		internal := func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP }
		if i := slices.IndexFunc(m.Node.Status.Addresses, internal); i >= 0 {
			primary, _ = config.ParseAddr(m.Node.Status.Addresses[i].Address)
		}
	}
	if why := m.family[desired.FamilyOf(primary)]; primary.IsValid() && !primary.IsUnspecified() && why != "" {
		m.add(Stops, "kernel", fmt.Sprintf("Slipstream does not start, because the node's primary address %s is of a family that it cannot serve: %s.", primary, why), "")
		return false
	}
	return true
}
