"""The decision as a document: recorded runs in, one HTML file, the same as Markdown, and the figures' data out."""

from denominator.report.build import Failure, Report, build
from denominator.report.write import Written, write

__all__ = ["Failure", "Report", "Written", "build", "write"]
