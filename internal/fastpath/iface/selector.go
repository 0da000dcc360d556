// SPDX-License-Identifier: Apache-2.0

// Package iface selects the network interfaces that take part in the fast path.
package iface

import (
	"fmt"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/fastpath/expression"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
)

// Selector selects the interfaces that take part. It is safe for concurrent use.
type Selector struct {
	expression *expression.Expression[variable] // nil for the default
}

// Default selects the interfaces that are up and neither loopback nor WireGuard nor
// ports of a bridge or bond.
func Default() *Selector { return &Selector{} }

// byDefault reports whether an interface takes part without an expression: it is up, not
// loopback, not WireGuard (which no test kernel has), and not a port of another interface
// (see package fastpath).
func byDefault(i *netif.Interface) bool {
	if !i.Up || i.Loopback || i.Type == "wireguard" {
		return false
	}
	switch i.PortOf {
	case "bridge", "bond", "team", "openvswitch":
		return false
	}
	return true
}

// variable is the interface in an expression.
type variable struct {
	Name      string   `cel:"name"`
	Type      string   `cel:"type"`
	Addresses []string `cel:"addresses"`
	MTU       int      `cel:"mtu"`
	Up        bool     `cel:"up"`
	PortOf    string   `cel:"portOf"`
}

// Compile returns a Selector for an expression in CEL (https://cel.dev), such as
//
//	interface.name.startsWith("veth") || interface.type == "vxlan"
//
// Its variables are interface.name, .type, .addresses (a list of strings), .mtu (bytes), .up
// and .portOf, as in [netif.Interface]. It may select interfaces that the default does not.
// An empty expression is the default.
//
// An invalid expression, or one that is not of type bool, returns an error of one line.
func Compile(text string) (*Selector, error) {
	if strings.TrimSpace(text) == "" {
		return Default(), nil
	}
	const variableName = "interface"
	e, err := expression.Compile[variable](variableName, text)
	if err != nil {
		return nil, err
	}
	return &Selector{expression: e}, nil
}

// String returns the expression; "" for the default.
func (s *Selector) String() string {
	if s.expression == nil {
		return ""
	}
	return s.expression.String()
}

// Selects reports whether an interface takes part. It does not if the expression fails, for
// example addresses[0] of an interface without addresses.
func (s *Selector) Selects(i *netif.Interface) (bool, error) {
	if s.expression == nil {
		return byDefault(i), nil
	}
	v := &variable{Name: i.Name, Type: i.Type, Addresses: make([]string, len(i.Addresses)), MTU: i.MTU, Up: i.Up, PortOf: i.PortOf}
	for n, a := range i.Addresses {
		v.Addresses[n] = a.String()
	}
	selects, err := s.expression.Eval(v)
	if err != nil {
		return false, fmt.Errorf("interface expression %q: interface %s: %w", s, i.Name, err)
	}
	return selects, nil
}
