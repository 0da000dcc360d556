// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"slices"
)

var (
	streamAggregated     = quantity{"stream_aggregated", "TCP stream, segments aggregated", BitsPerSecond, More}
	streamAggregatedBest = quantity{"stream_aggregated_best", "TCP stream, segments aggregated, best tenth of a second", BitsPerSecond, More}
	streamPackets        = quantity{"stream_packets", "TCP stream, GSO, TSO and GRO off", BitsPerSecond, More}
	streamPacketsBest    = quantity{"stream_packets_best", "TCP stream, GSO, TSO and GRO off, best tenth of a second", BitsPerSecond, More}
	datagrams            = quantity{"udp_packets", "UDP packets a second", PerSecond, More}
	packetCost           = quantity{"packet_cost", "forwarding one packet", Nanoseconds, Less}
	pathCost             = quantity{"path_cost", "forwarding one packet, without the links", Nanoseconds, Less}
)

// Throughput measures long connections.
func Throughput(ctx context.Context, o ThroughputOptions) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return run(ctx, o.Options, Result{Benchmark: "throughput", Throughput: &o}, func(w *world, r *Result) error {
		for _, measure := range Measures {
			if !slices.Contains(o.Measures, measure) {
				continue
			}
			var err error
			switch measure {
			case MeasureAggregated:
				err = w.streams(ctx, o, r, streamAggregated, streamAggregatedBest)
			case MeasurePackets:
				err = w.separateStreams(ctx, o, r)
			case MeasureUDP:
				err = w.floods(ctx, o, r)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// streams measures TCP streams: their rates over a whole turn, and over its best
// tenth of a second, which other processes disturb least.
func (w *world) streams(ctx context.Context, o ThroughputOptions, r *Result, whole, best quantity) (err error) {
	server, err := w.streamServer(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Kill()) }()
	m, err := w.turns(ctx, o.Rounds, r.settings(), func(ctx context.Context, _ Setting) (values, error) {
		s, err := w.stream(ctx, o.Seconds)
		return values{whole.name: s.rate, best.name: s.best}, err
	})
	if err != nil {
		return err
	}
	return errors.Join(m.offloaded(), r.add(m, whole, best))
}

// separateStreams measures TCP streams of which each packet goes alone.
func (w *world) separateStreams(ctx context.Context, o ThroughputOptions, r *Result) (err error) {
	undo, err := w.separate()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	return w.streams(ctx, o, r, streamPackets, streamPacketsBest)
}
