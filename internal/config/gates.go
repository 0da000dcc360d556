// SPDX-License-Identifier: Apache-2.0

package config

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// Acceleration is the feature gate of KEP-4963. If it is disabled, there is no fast path.
const Acceleration = "KubeProxyAcceleration"

// externalIPs is KEP-5707's feature gate: if it is disabled, spec.externalIPs is ignored.
const externalIPs = "AllowServiceExternalIPs"

// KubernetesVersion is the release of the kube-proxy that Slipstream replaces.
const KubernetesVersion = "v1.37.1"

// localhostNodePorts is KEP-6032's feature gate.
const localhostNodePorts = "KubeProxyNFTablesLocalhostNodePorts"

// ipvsMode is KEP-5495's feature gate: if it is disabled, mode ipvs is invalid.
const ipvsMode = "KubeProxyIPVS"

// effective are the gates that have an effect on Slipstream.
var effective = map[string]bool{
	Acceleration:                         true,
	externalIPs:                          true,
	localhostNodePorts:                   true,
	ipvsMode:                             true,
	string(logsapi.ContextualLogging):    true,
	string(logsapi.LoggingAlphaOptions):  true,
	string(logsapi.LoggingBetaOptions):   true,
	string(logsapi.LoggingStableOptions): true,
	"AllAlpha":                           true,
	"AllBeta":                            true,
}

// whyNoEffect explains why a gate has no effect, for gates that change what kube-proxy does
// with nftables.
var whyNoEffect = map[string]string{
	"NFTablesNetlink": "has no effect: Slipstream programs nftables by netlink and does not run nft",
}

// upstreamGates are kube-proxy's gates, each with stage, default, and whether the default
// is locked. testdata/gates prints it.
//
//go:embed gates.txt
var upstreamGates string

// knownGates returns all gates, at their defaults.
var knownGates = sync.OnceValue(func() featuregate.MutableVersionedFeatureGate {
	gates := featuregate.NewVersionedFeatureGate(version.MustParse("1.37"))
	utilruntime.Must(logsapi.AddFeatureGates(gates))
	more := map[featuregate.Feature]featuregate.FeatureSpec{
		Acceleration: {Default: true, PreRelease: featuregate.Beta},
		// A gate of older releases, which old configurations may still set.
		"MinimizeIPTablesRestore": {Default: true, PreRelease: featuregate.GA},
	}
	known := gates.GetAll()
	for line := range strings.Lines(upstreamGates) {
		var name, stage, on, locked string
		if _, err := fmt.Sscan(line, &name, &stage, &on, &locked); err != nil {
			panic(err) // the file is embedded
		}
		if _, ok := known[featuregate.Feature(name)]; ok {
			continue
		}
		spec := featuregate.FeatureSpec{Default: on == "true", LockToDefault: locked == "true"}
		switch stage {
		case "GA":
			spec.PreRelease = featuregate.GA
		case "BETA":
			spec.PreRelease = featuregate.Beta
		case "DEPRECATED":
			spec.PreRelease = featuregate.Deprecated
		default:
			spec.PreRelease = featuregate.Alpha
		}
		more[featuregate.Feature(name)] = spec
	}
	utilruntime.Must(gates.Add(more))
	return gates
})

// validateGates rejects unknown gates and changes of locked gates.
func validateGates(set map[string]bool, path *field.Path) (errs field.ErrorList) {
	known := knownGates().GetAll()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		spec, ok := known[featuregate.Feature(name)]
		switch {
		case !ok:
			errs = append(errs, field.Invalid(path.Key(name), set[name], "unknown feature gate"))
		case spec.LockToDefault && spec.Default != set[name]:
			errs = append(errs, field.Invalid(path.Key(name), set[name], "must be "+strconv.FormatBool(spec.Default)))
		}
	}
	return errs
}

// quietGates can be set without a log line for each gate. Notes report those that matter.
type quietGates interface {
	featuregate.FeatureGate
	SetFromMapWithLogger(logger logr.Logger, set map[string]bool) error
}

// Gates returns all feature gates as set. Gates with invalid values have their defaults.
func (c *Config) Gates() featuregate.FeatureGate {
	gates := knownGates().DeepCopy().(quietGates)
	valid := maps.Clone(c.KubeProxy.FeatureGates)
	maps.DeleteFunc(valid, func(name string, on bool) bool { return validateGates(map[string]bool{name: on}, nil) != nil })
	utilruntime.Must(gates.SetFromMapWithLogger(logr.Discard(), valid))
	return gates
}

// CountGates publishes the feature gates as the metric kubernetes_feature_enabled, as
// kube-proxy does.
func (c *Config) CountGates() { c.Gates().(interface{ AddMetrics() }).AddMetrics() }
