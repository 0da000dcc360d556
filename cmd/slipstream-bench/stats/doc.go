// SPDX-License-Identifier: Apache-2.0

// Package stats is the little statistics that benchmarks need.
package stats
