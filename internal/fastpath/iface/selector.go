// SPDX-License-Identifier: Apache-2.0

// Package iface selects the network interfaces that take part in the fast path.
package iface

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/expression"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"golang.org/x/sys/unix"
)

// Selector selects the interfaces that take part. It is safe for concurrent use.
type Selector struct {
	expression *expression.Expression[variable] // nil for the default
	patterns   []nfnl.Device
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

const variableName = "interface"

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
	e, err := expression.Compile[variable](variableName, text)
	if err != nil {
		return nil, err
	}
	s := &Selector{expression: e}
	if p, ok := patterns(e.Tree()); ok {
		s.patterns = disjoint(p)
	}
	return s, nil
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

// Patterns returns patterns that match exactly the interfaces that the Selector selects,
// for kernels that match names themselves. No two of them match the same name. It returns
// nil if the expression uses anything but names.
func (s *Selector) Patterns() []nfnl.Device { return s.patterns }

// disjoint removes patterns that others include, which the kernel refuses in one flowtable
// (EEXIST), and names that are too long for an interface.
func disjoint(all []nfnl.Device) (some []nfnl.Device) {
	includes := func(p, q nfnl.Device) bool { return p == q || p.Prefix && strings.HasPrefix(q.Name, p.Name) }
	for _, p := range all {
		if len(p.Name) < unix.IFNAMSIZ && !slices.ContainsFunc(some, func(q nfnl.Device) bool { return includes(q, p) }) {
			some = append(slices.DeleteFunc(some, func(q nfnl.Device) bool { return includes(p, q) }), p)
		}
	}
	return some
}

// patterns parses an expression of terms name.startsWith("...") and name == "...", joined by
// ||.
func patterns(e ast.Expr) (all []nfnl.Device, ok bool) {
	if e.Kind() != ast.CallKind {
		return nil, false
	}
	call := e.AsCall()
	switch args := call.Args(); call.FunctionName() {
	case operators.LogicalOr:
		for _, arg := range args {
			some, ok := patterns(arg)
			if !ok {
				return nil, false
			}
			all = append(all, some...)
		}
		return all, true
	case operators.Equals:
		for i := range args {
			if name, ok := text(args[1-i]); ok && isName(args[i]) {
				return []nfnl.Device{{Name: name}}, name != ""
			}
		}
	case "startsWith":
		if name, ok := text(args[0]); ok && call.IsMemberFunction() && isName(call.Target()) {
			return []nfnl.Device{{Name: name, Prefix: true}}, name != ""
		}
	}
	return nil, false
}

func isName(e ast.Expr) bool {
	if e.Kind() != ast.SelectKind {
		return false
	}
	s := e.AsSelect()
	return s.FieldName() == "name" && !s.IsTestOnly() && s.Operand().Kind() == ast.IdentKind && s.Operand().AsIdent() == variableName
}

func text(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().Value().(string)
	return s, ok
}
