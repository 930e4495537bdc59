# The tests that take longest, for ctest, which begins with the greatest COST and
# knows what a test takes only from the second time on. A name that is not there is passed over.
set_tests_properties(
  Table.StaysWithinItsColumnsForTheShippedExamples
  Readme.EveryCommandRunsAndPrintsWhatTheTextShows
  Loop.ForecastsASmallPlanWithinEightPercent
  CaseDeepSpeed4477.MemoryFallsFromStageToStage
  Advice.SaysHowFarTheClosestIsIfNothingFits
  EmulatedTraining.OfALlamaOverTwoTensorRanksInSinglePrecision
  EmulatedTraining.OfAGptInSinglePrecision
  Fidelity.PageAndErrorsAreCurrent
  ProcessFaults.EndTheRunWithOneLineThatNamesRankAndInstruction
  Checkpoints.ArePlacedBestNearTheSquareRootOfTheDepth
  Reference.FindsNothingWrongWithTheKernels
  Faults.ARankThatHangsEndsTheRun
  FakeTraining.DoesNotDependOnTheOrderOfStreams
  FakeTraining.IssuesNothingUntilAllStreamsAreEmptyWhereTheHostWaits
  PROPERTIES COST 10)
