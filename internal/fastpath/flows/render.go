// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Listing is the offloaded connections at one time.
type Listing struct {
	At       time.Time
	Flows    []Flow
	Services Services
}

// WriteTable writes a line for each connection or, if grouped, for each frontend.
func (l *Listing) WriteTable(w io.Writer, grouped bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(t, strings.Join(cells, "\t")) }
	if grouped {
		row("SERVICE", "FRONTEND", "FLOWS", "BACKENDS", "PACKETS", "BYTES", "HARDWARE")
		for _, g := range Groups(l.Flows, l.Services) {
			row(cmp.Or(g.Service, "-"), g.Frontend.String(), fmt.Sprint(g.Flows), fmt.Sprint(g.Backends),
				fmt.Sprint(g.Sent.Packets+g.Received.Packets), BinarySize(g.Sent.Bytes+g.Received.Bytes), fmt.Sprint(g.Hardware))
		}
		return t.Flush()
	}
	row("SERVICE", "FRONTEND", "CLIENT", "BACKEND", "PACKETS", "BYTES", "AGE", "HARDWARE")
	for i := range l.Flows {
		f, age := &l.Flows[i], "-" // it may be unknown
		if !f.Began.IsZero() {
			age = max(l.At.Sub(f.Began), 0).Truncate(time.Second).String()
		}
		row(cmp.Or(l.Services[f.Frontend()], "-"), f.Frontend().String(), f.Source.String(), f.Backend.String(),
			fmt.Sprint(f.Sent.Packets+f.Received.Packets), BinarySize(f.Bytes()), age, map[bool]string{true: "yes", false: "no"}[f.Hardware])
	}
	return t.Flush()
}

// BinarySize formats a number of bytes with three digits: "1.46 MiB".
func BinarySize(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n)/1024, 0
	for ; f >= 999.5 && unit < len(units)-1; unit++ {
		f /= 1024
	}
	digits := 2
	switch {
	case f >= 99.95:
		digits = 0
	case f >= 9.995:
		digits = 1
	}
	return fmt.Sprintf("%.*f %s", digits, f, units[unit])
}

var units = []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// The JSON has plain strings and numbers.
type (
	jsonFlow struct {
		Service    string   `json:"service,omitempty"`
		Frontend   string   `json:"frontend"`
		Protocol   string   `json:"protocol"`
		Client     string   `json:"client"`
		Backend    string   `json:"backend"`
		Sent       Count    `json:"sent"`
		Received   Count    `json:"received"`
		AgeSeconds *float64 `json:"ageSeconds,omitempty"`
		Hardware   bool     `json:"hardware"`
	}
	jsonGroup struct {
		Service  string `json:"service,omitempty"`
		Frontend string `json:"frontend"`
		Protocol string `json:"protocol"`
		Flows    int    `json:"flows"`
		Backends int    `json:"backends"`
		Hardware int    `json:"hardware"`
		Sent     Count  `json:"sent"`
		Received Count  `json:"received"`
	}
)

// WriteJSON writes the content of WriteTable as one indented JSON object.
func (l *Listing) WriteJSON(w io.Writer, grouped bool) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if grouped {
		groups := []jsonGroup{}
		for _, g := range Groups(l.Flows, l.Services) {
			groups = append(groups, jsonGroup{
				Service: g.Service, Frontend: g.Frontend.AddrPort.String(), Protocol: g.Frontend.Protocol.String(),
				Flows: g.Flows, Backends: g.Backends, Hardware: g.Hardware, Sent: g.Sent, Received: g.Received,
			})
		}
		return e.Encode(struct {
			At     time.Time   `json:"time"`
			Groups []jsonGroup `json:"services"`
		}{l.At, groups})
	}
	flows := []jsonFlow{}
	for i := range l.Flows {
		f := &l.Flows[i]
		j := jsonFlow{
			Service: l.Services[f.Frontend()], Frontend: f.Destination.String(), Protocol: f.Protocol.String(),
			Client: f.Source.String(), Backend: f.Backend.String(), Sent: f.Sent, Received: f.Received, Hardware: f.Hardware,
		}
		if !f.Began.IsZero() {
			age := max(l.At.Sub(f.Began), 0).Seconds()
			j.AgeSeconds = &age
		}
		flows = append(flows, j)
	}
	return e.Encode(struct {
		At    time.Time  `json:"time"`
		Flows []jsonFlow `json:"flows"`
	}{l.At, flows})
}
