// SPDX-License-Identifier: Apache-2.0

package metrics

import "strconv"

// Healthz counts an answer to /healthz by its HTTP status.
func (m *Metrics) Healthz(status int) {
	m.kubeProxy.healthz.WithLabelValues(strconv.Itoa(status)).Inc()
}

// Livez counts an answer to /livez by its HTTP status.
func (m *Metrics) Livez(status int) {
	m.kubeProxy.livez.WithLabelValues(strconv.Itoa(status)).Inc()
}
