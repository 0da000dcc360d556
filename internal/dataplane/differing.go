// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Differing is one line of a difference between the desired content and the kernel's, and
// the object that it is about.
type Differing struct {
	// Surplus says that the kernel has this line and should not. Otherwise the
	// kernel lacks the line.
	Surplus bool

	// Subject is the frontend, or the address with its role: "10.96.0.10:80/TCP",
	// "ClusterIP 10.96.0.10". It is empty for faults.
	Subject string

	// Service is the Service of a desired frontend; zero for everything else.
	Service desired.ServicePort

	Text string // the line without its prefix
}

// Differings parses the result of Difference or Compare. full describes the desired
// content.
func Differings(difference string, full *desired.Change) (all []Differing) {
	if difference == "" {
		return nil
	}
	services := make(map[string]desired.ServicePort, len(full.Frontends))
	for _, f := range full.Frontends {
		services[f.Key().String()] = f.New.Service
	}
	for line := range strings.Lines(difference) {
		sign, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		d := Differing{Surplus: sign == "+", Text: text}
		if !strings.HasPrefix(text, faultPrefix) {
			d.Subject, _, _ = strings.Cut(text, " -> ")
			d.Service = services[d.Subject]
		}
		all = append(all, d)
	}
	return all
}

// String is the line, with the Service in front of its frontend.
func (d Differing) String() string {
	sign := "- "
	if d.Surplus {
		sign = "+ "
	}
	if d.Service != (desired.ServicePort{}) {
		sign += "Service " + d.Service.String() + ": "
	}
	return sign + d.Text
}
