// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// verify is what is counted when the kernel's content is compared in the background.
type verify struct {
	runs        *prometheus.CounterVec
	differences prometheus.Gauge
	last        prometheus.Gauge
}

// How a run can end, as label values.
const (
	verifySame      = "same"
	verifyDifferent = "different"
	verifyFailed    = "failed"
)

func newVerify() verify {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "verify", Name: name, Help: help})
	}
	v := verify{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: "verify", Name: "runs_total",
			Help: "Comparisons of all that the kernel has with what was programmed, by result: same, different or failed.",
		}, []string{"result"}),
		differences: gauge("differences", "Differences that the last comparison found."),
		last:        gauge("last_success_timestamp_seconds", "When a comparison last came to a result, whatever it was, in Unix time."),
	}
	for _, result := range []string{verifySame, verifyDifferent, verifyFailed} { // so that all are there from the start
		v.runs.WithLabelValues(result)
	}
	return v
}

// OnVerify has what Verified and VerifyFailed tell be served. It is called once, where
// the kernel's content is compared at all.
func (m *Metrics) OnVerify() {
	m.registry.MustRegister(m.verify.runs, m.verify.differences, m.verify.last)
}

// Verified says how many differences a comparison has found between what was programmed
// and what the kernel has.
func (m *Metrics) Verified(differences int, at time.Time) {
	result := verifySame
	if differences > 0 {
		result = verifyDifferent
	}
	m.verify.runs.WithLabelValues(result).Inc()
	m.verify.differences.Set(float64(differences))
	m.verify.last.Set(seconds(at))
}

// VerifyFailed says that what the kernel has could not be found out.
func (m *Metrics) VerifyFailed() { m.verify.runs.WithLabelValues(verifyFailed).Inc() }
