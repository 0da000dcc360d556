// SPDX-License-Identifier: Apache-2.0

package api

import (
	"google.golang.org/protobuf/encoding/protowire"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// This file decodes EndpointSlices. A rollout sends one of 100 endpoints for each endpoint that changes, to all
// nodes. The generated code makes 17 allocations for each endpoint; this one makes a few for a slice: its
// strings are parts of one, and endpoints share equal conditions and hints. Of an endpoint it leaves out what a
// proxy does not use: hostname, targetRef and deprecatedTopology.

// unmarshalSlice decodes an EndpointSlice. It does not retain raw.
func unmarshalSlice(raw []byte, s *discoveryv1.EndpointSlice) error {
	var others []byte // fields
	count := 0
	err := eachField(raw, func(number protowire.Number, field, _ []byte) error {
		if number == 2 {
			count++
		} else {
			others = append(others, field...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.Unmarshal(others); err != nil || count == 0 {
		return err
	}
	d := endpoints{
		raw: raw, text: string(raw), addresses: make([]string, 0, count), names: make([]string, 0, 2*count),
		conditions: map[string]discoveryv1.EndpointConditions{}, hints: map[string]*discoveryv1.EndpointHints{},
	}
	s.Endpoints = make([]discoveryv1.Endpoint, 0, count)
	return eachField(raw, func(number protowire.Number, _, value []byte) error {
		if number != 2 {
			return nil
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{})
		return d.unmarshal(value, &s.Endpoints[len(s.Endpoints)-1])
	})
}

// endpoints decodes the endpoints of a slice.
type endpoints struct {
	raw        []byte
	text       string // the same
	addresses  []string
	names      []string // of nodes and zones
	conditions map[string]discoveryv1.EndpointConditions
	hints      map[string]*discoveryv1.EndpointHints
}

func (d *endpoints) unmarshal(raw []byte, e *discoveryv1.Endpoint) error {
	first := len(d.addresses)
	return eachField(raw, func(number protowire.Number, _, value []byte) error {
		var err error
		switch number {
		case 1:
			d.addresses = append(d.addresses, d.string(value))
			e.Addresses = d.addresses[first:len(d.addresses):len(d.addresses)]
		case 2:
			c, known := d.conditions[string(value)]
			if !known {
				err = c.Unmarshal(value)
				d.conditions[string(value)] = c
			}
			e.Conditions = c
		case 6:
			e.NodeName = d.name(value)
		case 7:
			e.Zone = d.name(value)
		case 8:
			h := d.hints[string(value)]
			if h == nil {
				h = &discoveryv1.EndpointHints{}
				err = h.Unmarshal(value)
				d.hints[string(value)] = h
			}
			e.Hints = h
		}
		return err
	})
}

// string returns a part of raw, as a part of text. Their capacities say where it is.
func (d *endpoints) string(part []byte) string { return d.text[cap(d.raw)-cap(part):][:len(part)] }

func (d *endpoints) name(part []byte) *string {
	d.names = append(d.names, d.string(part))
	return &d.names[len(d.names)-1]
}

// eachField calls f with each field of a message, and with the value if that is of bytes.
func eachField(message []byte, f func(number protowire.Number, field, value []byte) error) error {
	for len(message) > 0 {
		number, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(number, typ, message[n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		var value []byte
		if typ == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message[n:])
		}
		if err := f(number, message[:n+size], value); err != nil {
			return err
		}
		message = message[n+size:]
	}
	return nil
}
